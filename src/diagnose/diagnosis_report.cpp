#include "diagnose/diagnosis_report.h"

#include "io/atomic_file.h"
#include "io/json.h"
#include "report/plain_table.h"
#include "report/progress.h"

namespace quads {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string share_text(double share) { return fmt::format("{:.1f} %", 100 * share); }

}  // namespace

std::string diagnosis_tables(const Diagnosis& diagnosis) {
  TableText parts;
  parts.header = {"rollout / trainer", "part", "max", "mean", "p99", "bias", "KL k3", "share"};
  std::string verdict;
  for (const PairDiagnosis& pair : diagnosis.pairs) {
    const std::string name = pair.rollout + " / " + pair.trainer;
    for (const DeltaSummary& p : pair.parts) {
      parts.rows.push_back({&p == pair.parts.data() ? name : "", p.name, format_figure(p.max),
                            format_figure(p.mean), format_figure(p.p99), format_figure(p.bias),
                            format_figure(p.kl_k3), share_text(p.share)});
    }
    const std::string dominant = pair.dominant();
    verdict += fmt::format("{}: {}\n", name,
                           dominant.empty() ? "no gap" : dominant + " is the largest part");
  }
  TableText projections;
  projections.header = {"layer", "projection"};
  for (const std::string& name : diagnosis.candidates) projections.header.push_back(name);
  for (const ProjectionError& error : diagnosis.projections) {
    std::vector<std::string>& row = projections.rows.emplace_back();
    row = {fmt::format("{}", error.layer), error.projection};
    for (double relative : error.relative) row.push_back(fmt::format("{:.3f} %", 100 * relative));
  }
  return fmt::format(
      "Log-prob differences per token; the parts add up to the gap exactly (share: of the gap's "
      "sum of squares)\n{}\n{}\nRelative error of the products, ||y_q - y|| / ||y||, on the inputs "
      "of the BF16 forward\n{}",
      plain_table(parts), verdict, plain_table(projections));
}

std::string diagnosis_json(const Diagnosis& diagnosis) {
  OrderedJson json = {{"pairs", OrderedJson::array()}, {"projections", OrderedJson::array()}};
  for (const PairDiagnosis& pair : diagnosis.pairs) {
    OrderedJson entry;
    entry["rollout"] = pair.rollout;
    entry["trainer"] = pair.trainer;
    entry["tokens"] = pair.deltas.front().values.size();
    entry["dominant"] = pair.dominant();
    for (const DeltaSummary& p : pair.parts) {
      entry["parts"][p.name] = {{"max", p.max},   {"mean", p.mean},   {"p99", p.p99},
                                {"bias", p.bias}, {"kl_k3", p.kl_k3}, {"share", p.share}};
    }
    json["pairs"].push_back(std::move(entry));
  }
  for (const ProjectionError& error : diagnosis.projections) {
    OrderedJson entry;
    entry["layer"] = error.layer;
    entry["projection"] = error.projection;
    for (size_t i = 0; i < error.relative.size(); ++i) {
      entry["relative_error"][diagnosis.candidates[i]] = error.relative[i];
    }
    json["projections"].push_back(std::move(entry));
  }
  return json.dump(2) + "\n";
}

void write_token_deltas(const std::string& path, const Diagnosis& diagnosis) {
  AtomicFile file(path);
  for (const PairDiagnosis& pair : diagnosis.pairs) {
    size_t token = 0;
    for (const Sample& sample : diagnosis.samples[pair.samples]) {
      OrderedJson line;
      line["rollout"] = pair.rollout;
      line["trainer"] = pair.trainer;
      line["index"] = sample.prompt_index;
      line["sample"] = sample.sample_index;
      line["response_tokens"] = sample.response;
      line["logprobs"] = sample.logprobs;
      for (const Delta& delta : pair.deltas) {
        const auto begin = delta.values.begin() + static_cast<int64_t>(token);
        line[delta.name] = std::vector<double>(begin, begin + std::ssize(sample.response));
      }
      token += sample.response.size();
      file.write(line.dump() + "\n");
    }
  }
  file.commit();
}

}  // namespace quads
