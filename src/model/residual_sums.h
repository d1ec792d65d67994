// Statistics of residual activation compensation: how much the first quantisation left, per layer,
// site and channel. Integer sums, so they do not depend on batches or threads.
#pragma once

#include <vector>

#include "base/aligned_buffer.h"
#include "kernels/cpu/linear.h"
#include "model/sites.h"

namespace quads {

class ResidualSums {
 public:
  /// Counters for every site that has residuals, one set a worker.
  ResidualSums(const QuantisedSites& sites, int workers);

  void clear();
  /// Where the kernels add; `counted` [rows] of the batch, null for all. Null sums for a site that
  /// is not quantised.
  kernels::ResidualStats at(int64_t layer, Site site, const uint8_t* counted);
  /// Adds what was counted elsewhere: [k] sums of a site that has residuals.
  void add(int64_t layer, Site site, const int64_t* sums);
  /// Totals over the workers: [layers * kSites] sums of residual_units, empty where not quantised.
  std::vector<std::vector<int64_t>> totals() const;

 private:
  struct Entry {
    int64_t k = 0;
    AlignedBuffer<int64_t> sums;  // [workers][k]
  };
  int workers_;
  std::vector<Entry> entries_;
};

/// The masks that select the ratio's share of `totals` (numerics: select_mask) at every site that
/// has sums.
RacMasks select_masks(const std::vector<std::vector<int64_t>>& totals, const Rac& rac);

/// Masks that select everything at every quantised site.
RacMasks full_masks(const QuantisedSites& sites);

/// Whether `masks` could have been made for these sites: a mask of the right length, with the share
/// of the precision's compensation selected, at each quantised site and at no others.
bool masks_fit(const RacMasks& masks, const QuantisedSites& sites);

/// The share of the residual that the masks cover, over all sites, in [0, 1].
double covered_energy(const std::vector<std::vector<int64_t>>& totals, const RacMasks& masks);

}  // namespace quads
