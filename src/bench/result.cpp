#include "bench/result.h"

#include <cmath>

#include "io/json.h"
#include "report/plain_table.h"
#include "report/progress.h"

namespace quads::bench {
namespace {

std::string figure_text(double value) {
  if (std::isnan(value)) return "–";
  return std::abs(value) >= 10000 ? fmt::format("{:.0f}", value) : format_figure(value);
}

}  // namespace

std::string result_table(const Result& result) {
  TableText table;
  for (const Row& row : result.rows) {
    std::vector<std::string>& cells = table.rows.emplace_back();
    for (const auto& [name, label] : row.labels) {
      cells.push_back(
          std::visit([](const auto& value) { return fmt::format("{}", value); }, label));
    }
    for (const auto& [name, value] : row.figures) cells.push_back(figure_text(value));
    if (!table.header.empty()) continue;
    for (const auto& [name, label] : row.labels) table.header.push_back(name);
    for (const auto& [name, value] : row.figures) table.header.push_back(name);
  }
  std::string text = result.notes + "\n";
  for (const auto& [name, value] : result.machine) {
    const int64_t* count = std::get_if<int64_t>(&value);
    text += fmt::format("{}: {}\n", name,
                        count ? fmt::format("{}", *count) : figure_text(std::get<double>(value)));
  }
  return text + plain_table(table);
}

std::string result_json(const Result& result) {
  nlohmann::ordered_json json;
  json["benchmark"] = result.name;
  json["notes"] = result.notes;
  json["machine"] = nlohmann::ordered_json::object();
  for (const auto& [name, value] : result.machine) {
    std::visit([&, &name = name](auto number) { json["machine"][name] = number; }, value);
  }
  for (const Row& row : result.rows) {
    nlohmann::ordered_json entry;
    for (const auto& [name, label] : row.labels) {
      std::visit([&, &name = name](const auto& value) { entry[name] = value; }, label);
    }
    for (const auto& [name, value] : row.figures) entry[name] = value;  // NaN is written as null
    json["rows"].push_back(std::move(entry));
  }
  return json.dump(2) + "\n";
}

}  // namespace quads::bench
