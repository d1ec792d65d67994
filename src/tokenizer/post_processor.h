// What is put around the tokens of a text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/json.h"

namespace quads {

class PostProcessor {
 public:
  /// Of tokenizer.json's "post_processor": null, ByteLevel (which is about offsets only),
  /// TemplateProcessing (its form for a single text), and a Sequence with at most one of the
  /// latter. Error, naming `where`, for others, and for ids that are not below `vocab_size`.
  PostProcessor(const Json& json, int64_t vocab_size, const std::string& where);

  /// The ids with the template's special tokens, or with the template's other parts only.
  std::vector<int32_t> process(std::vector<int32_t> ids, bool add_special_tokens) const;

 private:
  struct Part {
    bool is_text = false;
    std::vector<int32_t> ids{};  // of a special token
  };
  void read(const Json& json, int64_t vocab_size, const std::string& where);
  void read_template(const Json& json, int64_t vocab_size, const std::string& where);

  std::optional<std::vector<Part>> template_;
};

}  // namespace quads
