// A table for a terminal.
#pragma once

#include <string>

#include "report/tables.h"

namespace quads {

/// Columns aligned with spaces, a rule under the header; the first column to the left, the others
/// to the right. Every row has as many cells as the header.
std::string plain_table(const TableText& table);

}  // namespace quads
