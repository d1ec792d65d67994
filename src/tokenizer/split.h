// Cuts pieces at matches: what becomes of a delimiter.
#pragma once

#include <string>
#include <vector>

#include "io/json.h"
#include "tokenizer/piece.h"
#include "tokenizer/regex.h"

namespace quads {

/// For "the-final--countdown" and "-": Removed gives the, final, countdown; Isolated the, -, final,
/// -, -, countdown; MergedWithPrevious the-, final-, -, countdown; MergedWithNext the, -final, -,
/// -countdown; Contiguous the, -, final, --, countdown.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

/// By its name in tokenizer.json; Error, naming `where`, for another.
SplitBehavior split_behavior(const std::string& name, const std::string& where);

/// Appends the parts of `piece` to `out`; none is empty. The delimiters are the `matches` (in
/// order, not overlapping) or, inverted, all that lies between them.
void split_piece(const Piece& piece, const std::vector<Span>& matches, SplitBehavior behavior,
                 bool invert, std::vector<Piece>& out);

}  // namespace quads
