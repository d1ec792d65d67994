// Parameters: the layout that fused products share, seeded values, assignment by name, files.
#include "model/parameters.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "tests/model/side.h"

namespace quads::testing {
namespace {

class ParametersTest : public ::testing::Test {
 protected:
  ParametersTest() : parameters_(moe_config()) { randomise(parameters_, 8); }

  /// Every tensor of parameters_, as assign wants them.
  std::vector<NamedTensor> named() {
    std::vector<NamedTensor> tensors;
    shapes_.clear();
    for (const Parameter& p : parameters_.layout().parameters) {
      for (const ParameterPart& part : p.parts) {
        shapes_.push_back(p.part_shape(part));
        tensors.push_back({.name = part.name,
                           .shape = {},
                           .bf16 = parameters_.values() + p.offset + part.row_begin * p.cols});
      }
    }
    for (size_t i = 0; i < tensors.size(); ++i) tensors[i].shape = shapes_[i];
    return tensors;
  }
  /// The message with which assigning fails; nothing may have changed.
  std::string refusal(const std::vector<NamedTensor>& tensors) {
    Parameters target(moe_config());
    target.initialise(1);
    const std::vector<Bf16> before(target.values(), target.values() + target.layout().total);
    try {
      target.assign(tensors);
    } catch (const Error& error) {
      EXPECT_TRUE(std::equal(before.begin(), before.end(), target.values()));
      return error.what();
    }
    return "accepted";
  }
  Parameters parameters_;
  std::vector<std::vector<int64_t>> shapes_;
};

TEST_F(ParametersTest, PartsCoverEveryRowOnceAndParametersDoNotOverlap) {
  std::set<std::string> names;
  int64_t end = 0;
  for (const Parameter& p : parameters_.layout().parameters) {
    EXPECT_EQ(p.offset, end) << p.name;
    EXPECT_EQ(p.offset % 16, 0) << p.name;
    EXPECT_GE(p.padded_size(), p.size()) << p.name;
    end += p.padded_size();
    int64_t row = 0;
    for (const ParameterPart& part : p.parts) {
      EXPECT_EQ(part.row_begin, row) << part.name;
      row += part.rows;
      EXPECT_TRUE(names.insert(part.name).second) << part.name;
    }
    EXPECT_EQ(row, p.rows) << p.name;
  }
  EXPECT_EQ(end, parameters_.layout().total);
  EXPECT_TRUE(names.contains("model.layers.2.mlp.experts.5.up_proj.weight"));
  EXPECT_TRUE(names.contains("model.layers.1.mlp.up_proj.weight"));
  EXPECT_FALSE(names.contains("lm_head.weight"));  // tied
}

TEST_F(ParametersTest, InitialisationTellsHowFarItIs) {
  Parameters parameters(moe_config());
  std::vector<int64_t> done;
  parameters.initialise(1, [&](int64_t values, int64_t total) {
    EXPECT_EQ(total, parameters.layout().total);
    EXPECT_LT(values, total);
    done.push_back(values);
  });
  EXPECT_EQ(std::ssize(done), std::ssize(parameters.layout().parameters));
  EXPECT_EQ(done.front(), 0);
  EXPECT_TRUE(std::ranges::is_sorted(done));
}

TEST_F(ParametersTest, InitialisationIsSeededGaussianOfTheConfiguredSize) {
  Parameters a(moe_config()), b(moe_config()), c(moe_config());
  a.initialise(1);
  b.initialise(1);
  c.initialise(2);
  const int64_t total = a.layout().total;
  EXPECT_TRUE(std::equal(a.values(), a.values() + total, b.values()));
  EXPECT_FALSE(std::equal(a.values(), a.values() + total, c.values()));
  double sum = 0.0, squares = 0.0, count = 0.0;
  for (const Parameter& p : a.layout().parameters) {
    for (int64_t i = 0; i < p.padded_size(); ++i) {
      const double x = to_float(a.values()[p.offset + i]);
      if (i >= p.size()) {
        EXPECT_EQ(x, 0.0) << "padding of " << p.name;
      } else if (p.vector) {
        EXPECT_EQ(x, 1.0) << p.name;
      } else {
        sum += x;
        squares += x * x;
        count += 1.0;
      }
    }
  }
  EXPECT_NEAR(sum / count, 0.0, 4 * 0.15 / std::sqrt(count));
  EXPECT_NEAR(std::sqrt(squares / count), 0.15, 0.15 * 3 / std::sqrt(count));
}

TEST_F(ParametersTest, AssignmentByNameCopiesEveryTensorInAnyOrder) {
  std::vector<NamedTensor> tensors = named();
  std::ranges::reverse(tensors);
  Parameters target(moe_config());
  target.assign(tensors);
  EXPECT_TRUE(
      std::equal(target.values(), target.values() + target.layout().total, parameters_.values()));
}

TEST_F(ParametersTest, AssignmentRefusesWhatDoesNotFitAndNamesIt) {
  const std::vector<NamedTensor> good = named();
  std::vector<NamedTensor> tensors = good;
  const std::string dropped(tensors.back().name);
  tensors.pop_back();
  EXPECT_EQ(refusal(tensors), "tensor " + dropped + " is missing");

  tensors = good;
  tensors.push_back(good[3]);
  EXPECT_EQ(refusal(tensors), "tensor " + std::string(good[3].name) + " is given twice");

  tensors = good;
  tensors.push_back(good[3]);
  tensors.back().name = "model.layers.9.stray";
  EXPECT_EQ(refusal(tensors), "tensor model.layers.9.stray is not part of this model");

  tensors = good;
  const std::vector<int64_t> shape = {64, 43};
  tensors[0].shape = shape;
  EXPECT_EQ(refusal(tensors),
            "tensor model.embed_tokens.weight has shape [64, 43], the configuration says [43, 64]");

  tensors = good;
  std::vector<float> values(43 * 64, 1.0F);
  values[2 * 64 + 5] = 3.4e38F;  // finite, but not in BF16
  tensors[0].bf16 = nullptr;
  tensors[0].f32 = values.data();
  EXPECT_NE(refusal(tensors).find("row 2, column 5"), std::string::npos) << refusal(tensors);
  values[2 * 64 + 5] = NAN;
  EXPECT_NE(refusal(tensors).find("holds nan at row 2, column 5"), std::string::npos);
}

TEST_F(ParametersTest, SavedAndLoadedIsTheSameModel) {
  const auto directory =
      std::filesystem::temp_directory_path() / ("quads_parameters_" + std::to_string(getpid()));
  std::filesystem::create_directory(directory);
  save_parameters(parameters_, directory);
  const Parameters loaded = load_parameters(directory);
  EXPECT_EQ(loaded.config(), parameters_.config());
  EXPECT_TRUE(
      std::equal(loaded.values(), loaded.values() + loaded.layout().total, parameters_.values()));
  std::filesystem::remove_all(directory);
}

TEST_F(ParametersTest, SizesThatTheKernelsLackAreNamed) {
  ModelConfig config = moe_config();
  config.moe_intermediate_size = 48;
  try {
    const Parameters parameters(config);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("moe_intermediate_size is 48"), std::string::npos);
  }
}

}  // namespace
}  // namespace quads::testing
