// What a benchmark gives: rows of figures, as a table and as JSON.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace quads::bench {

struct Row {
  std::vector<std::pair<std::string, std::variant<std::string, int64_t>>> labels;  // of what
  std::vector<std::pair<std::string, double>> figures;  // NaN: does not apply
};

/// All rows have the same labels and figures.
struct Result {
  std::string name;   // "gemm"
  std::string notes;  // units, and what the peers are
  /// Threads, and limits measured in the same run.
  std::vector<std::pair<std::string, std::variant<int64_t, double>>> machine;
  std::vector<Row> rows;
};

std::string result_table(const Result& result);
/// {"benchmark", "notes", "machine": {...}, "rows": [{label: text or number, figure: number or
/// null}]}, indented.
std::string result_json(const Result& result);

}  // namespace quads::bench
