//! Which tensor an eviction sweep evicts next.

use super::Eviction;

/// Residents up to which all are scanned for a victim. Of more, a shortlist of so many is scanned, which is made anew
/// after so many calls.
pub(super) const SCANNED: usize = 128;
const SHORTLISTED: usize = 32;
const SHORTLIST_CALLS: usize = 16;
/// Stale victims evaluated anew before one is evicted, at most.
const EVALUATIONS: usize = 24;

impl Eviction<'_> {
    /// The tensor to evict.
    pub(super) fn victim(&mut self) -> Option<u32> {
        if self.residents.len() > SCANNED && self.current >= self.listed_at + SHORTLIST_CALLS {
            self.make_shortlist();
        }
        let mut best = self.lowest_score();
        if best.is_none() && self.residents.len() > SCANNED {
            self.make_shortlist();
            best = self.lowest_score();
        }
        best
    }

    /// Shortlists the tensors with the lowest scores.
    fn make_shortlist(&mut self) {
        self.visits += self.residents.len() as u64;
        let mut scored: Vec<(f64, u32)> =
            self.residents.iter().map(|&t| (self.score(t as usize), t)).collect();
        if scored.len() > SHORTLISTED {
            scored.select_nth_unstable_by(SHORTLISTED, |a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            scored.truncate(SHORTLISTED);
        }
        self.shortlist.iter().for_each(|&t| self.in_shortlist[t as usize] = false);
        self.shortlist.clear();
        self.shortlist.extend(scored.into_iter().map(|s| s.1));
        self.shortlist.iter().for_each(|&t| self.in_shortlist[t as usize] = true);
        self.listed_at = self.current;
    }

    /// The tensor with the lowest score: of all residents if they are few, else of the shortlist, to which tensors
    /// evaluated since are added.
    fn lowest_score(&mut self) -> Option<u32> {
        let all = self.residents.len() <= SCANNED;
        if !all {
            let (resident, in_shortlist) = (&self.resident, &mut self.in_shortlist);
            self.shortlist.retain(|&t| {
                in_shortlist[t as usize] = resident[t as usize];
                resident[t as usize]
            });
        }
        let mut scores = std::mem::take(&mut self.scores);
        let list = if all { &self.residents } else { &self.shortlist };
        let evictable = |t: usize| self.locks[t] == 0 && self.table.bytes[t] > 0;
        let score = |&t: &u32| if evictable(t as usize) { self.score(t as usize) } else { f64::INFINITY };
        scores.clear();
        scores.extend(list.iter().map(score));
        let mut best = None;
        for _ in 0..EVALUATIONS {
            self.visits += scores.len() as u64;
            let lowest = scores.iter().copied().fold(f64::INFINITY, f64::min);
            best = scores.iter().position(|&score| score == lowest && score < f64::INFINITY);
            let Some(at) = best else { break };
            let tensor = if all { self.residents[at] } else { self.shortlist[at] };
            self.evaluate(tensor);
            // Of the scores, that of the tensor alone has changed.
            scores[at] = self.score(tensor as usize);
            if scores[at] <= lowest * 1.000_1 {
                break;
            }
        }
        let victim = best.filter(|&at| scores[at] < f64::INFINITY);
        self.scores = scores;
        victim.map(|at| if all { self.residents[at] } else { self.shortlist[at] })
    }

    /// Cost over distance: 0 if nothing needs the tensor, infinite if it is needed and cannot be rematerialized.
    fn score(&self, t: usize) -> f64 {
        if self.next_use[t] == usize::MAX {
            return 0.0;
        }
        if self.unrecoverable[t] {
            return f64::INFINITY;
        }
        match self.policy.distance {
            0.0 => self.cost[t],
            _ => self.cost[t] / (self.next_use[t].saturating_sub(self.current) as f64 + 0.5),
        }
    }
}
