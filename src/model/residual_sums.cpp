#include "model/residual_sums.h"

#include <algorithm>

namespace quads {

ResidualSums::ResidualSums(const QuantisedSites& sites, int workers) : workers_(workers) {
  for (int64_t l = 0; l < sites.num_layers(); ++l) {
    for (int s = 0; s < kSites; ++s) {
      Entry entry;
      if (sites.has_residuals(l, static_cast<Site>(s))) {
        entry.k = sites.width(l, static_cast<Site>(s));
        entry.sums = AlignedBuffer<int64_t>(entry.k * workers);
      }
      entries_.push_back(std::move(entry));
    }
  }
}

void ResidualSums::clear() {
  for (Entry& entry : entries_) std::ranges::fill(entry.sums.span(), 0);
}

kernels::ResidualStats ResidualSums::at(int64_t layer, Site site, const uint8_t* counted) {
  Entry& entry = entries_[static_cast<size_t>(layer * kSites + static_cast<int64_t>(site))];
  if (entry.k == 0) return {};
  return {entry.sums.data(), entry.k, counted};
}

void ResidualSums::add(int64_t layer, Site site, const int64_t* sums) {
  Entry& entry = entries_[static_cast<size_t>(layer * kSites + static_cast<int64_t>(site))];
  for (int64_t i = 0; i < entry.k; ++i) entry.sums[i] += sums[i];
}

std::vector<std::vector<int64_t>> ResidualSums::totals() const {
  std::vector<std::vector<int64_t>> result;
  for (const Entry& entry : entries_) {
    std::vector<int64_t> sums(static_cast<size_t>(entry.k), 0);
    for (int64_t i = 0; i < entry.k * workers_; ++i) {
      sums[static_cast<size_t>(i % entry.k)] += entry.sums[i];
    }
    result.push_back(std::move(sums));
  }
  return result;
}

RacMasks select_masks(const std::vector<std::vector<int64_t>>& totals, const Rac& rac) {
  RacMasks masks;
  for (const std::vector<int64_t>& sums : totals) {
    masks.masks.push_back(sums.empty() ? std::vector<uint8_t>{}
                                       : select_mask(sums, rac.ratio, rac.granularity));
  }
  return masks;
}

RacMasks full_masks(const QuantisedSites& sites) {
  RacMasks masks;
  for (int64_t l = 0; l < sites.num_layers(); ++l) {
    for (int s = 0; s < kSites; ++s) {
      const auto site = static_cast<Site>(s);
      const auto k = static_cast<size_t>(sites.quantised(l, site) ? sites.width(l, site) : 0);
      masks.masks.emplace_back(k, uint8_t{1});
    }
  }
  return masks;
}

double covered_energy(const std::vector<std::vector<int64_t>>& totals, const RacMasks& masks) {
  double covered = 0.0, all = 0.0;
  for (size_t i = 0; i < totals.size(); ++i) {
    for (size_t c = 0; c < totals[i].size(); ++c) {
      const auto units = static_cast<double>(totals[i][c]);
      all += units;
      if (i < masks.masks.size() && !masks.masks[i].empty() && masks.masks[i][c]) covered += units;
    }
  }
  return all > 0.0 ? covered / all : 1.0;
}

bool masks_fit(const RacMasks& masks, const QuantisedSites& sites) {
  // Sums that are all alike select as many units as any others.
  std::vector<std::vector<int64_t>> sums;
  for (const std::vector<uint8_t>& full : full_masks(sites).masks) sums.emplace_back(full.size());
  const RacMasks wanted = select_masks(sums, sites.precision.rac);
  return std::ranges::equal(
      masks.masks, wanted.masks, [](const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) {
        return a.size() == b.size() && std::ranges::count(a, 0) == std::ranges::count(b, 0);
      });
}

}  // namespace quads
