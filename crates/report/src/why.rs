//! Why a tensor is where it is: kept, rematerialized or offloaded, and what the other ways would cost.

use crate::{Kind, PlanView, SpaceView, View};
use plimsoll_plan::{Direction, PlanSet, StateHome, Tier, Tiers, in_words, time_in_words};
use std::collections::BTreeSet;
use std::fmt::{self, Write};

/// Tensors that are told of at most, the largest first.
const MOST: usize = 12;
/// Names that are suggested at most.
const MOST_NEAR: usize = 5;
/// Names that are less alike are not suggested.
const LEAST_ALIKE: f64 = 0.7;

/// A name that no layer and no tensor has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// The name.
    pub name: String,
    /// Names that are like it.
    pub near: Vec<String>,
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no layer and no tensor `{}`", self.name)?;
        match self.near.is_empty() {
            true => write!(f, "; `plimsoll graph` shows the layers"),
            false => write!(f, "; like it: {}", self.near.join(", ")),
        }
    }
}

impl std::error::Error for Unknown {}

/// Tells of a layer, of all layers below a name, or of a state, what its tensors are in the first plan of a set, why, and what
/// would be otherwise. `view` is of this set.
pub fn why(plans: &PlanSet, view: &View, tiers: &Tiers, name: &str) -> Result<String, Unknown> {
    let Some(plan) = view.plans.first() else {
        return Err(Unknown { name: name.to_string(), near: Vec::new() });
    };
    let told = Teller { plans, view, plan, tiers, held: plan.held_bytes() };
    let chosen = told.chosen(name);
    let away = told.offloaded_states(name);
    if chosen.is_empty() && away.is_empty() {
        return Err(Unknown { name: name.to_string(), near: told.near(name) });
    }
    let mut text = told.heading(name, &chosen);
    for &tensor in chosen.iter().take(MOST) {
        text += &format!("\n\n{}", told.tensor(tensor));
    }
    if chosen.len() > MOST {
        text += &format!("\n\n… and {} smaller tensors.", chosen.len() - MOST);
    }
    for state in away {
        text += &format!("\n\n{state}");
    }
    Ok(text)
}

struct Teller<'a> {
    plans: &'a PlanSet,
    view: &'a View,
    plan: &'a PlanView,
    tiers: &'a Tiers,
    /// What tensors hold at each step.
    held: Vec<u64>,
}

fn bytes(count: u64) -> String {
    in_words(usize::try_from(count).unwrap_or(usize::MAX))
}

impl Teller<'_> {
    /// The memory space of the plan's arena.
    fn space(&self) -> &SpaceView {
        &self.view.spaces[self.plan.space as usize]
    }

    fn kind(&self, tensor: usize) -> Kind {
        Kind::ALL[usize::from(self.plan.tensors.kind[tensor]) % Kind::ALL.len()]
    }

    fn layer(&self, tensor: usize) -> &str {
        &self.plan.layers[self.plan.tensors.layer[tensor] as usize]
    }

    fn what(&self, tensor: usize) -> &str {
        &self.plan.words[self.plan.tensors.what[tensor] as usize]
    }

    /// The tensors of a name, the largest first: a state's, a layer's, or those of all layers below it.
    fn chosen(&self, name: &str) -> Vec<usize> {
        let all = 0..self.plan.tensors.len();
        let state = format!("{name} ");
        let below = format!("{name}/");
        let is_state = |&i: &usize| self.kind(i) <= Kind::Statistic && self.what(i).starts_with(&state);
        let mut found: Vec<usize> = all.clone().filter(is_state).collect();
        if found.is_empty() {
            found = all.clone().filter(|&i| self.layer(i) == name && !name.is_empty()).collect();
        }
        if found.is_empty() {
            found = all.filter(|&i| self.layer(i).starts_with(&below)).collect();
        }
        found.sort_by_key(|&i| (std::cmp::Reverse(self.plan.tensors.bytes[i]), self.plan.tensors.first[i]));
        found
    }

    /// Names of layers and states that are like a name.
    fn near(&self, name: &str) -> Vec<String> {
        let states = self.plans.states.iter().map(|state| state.name.as_str());
        let layers = self.plan.layers.iter().map(String::as_str);
        let names: BTreeSet<&str> = states.chain(layers).filter(|name| !name.is_empty()).collect();
        let lower = name.to_lowercase();
        let alike = |other: &&str| {
            let contains = other.to_lowercase().contains(&lower) && !lower.is_empty();
            if contains { 1.0 } else { strsim::jaro_winkler(&lower, &other.to_lowercase()) }
        };
        let mut near: Vec<(f64, &str)> = names.into_iter().map(|other| (alike(&other), other)).collect();
        near.retain(|(alike, _)| *alike >= LEAST_ALIKE);
        near.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.len().cmp(&b.1.len())).then(a.1.cmp(b.1)));
        near.into_iter().take(MOST_NEAR).map(|(_, name)| name.to_string()).collect()
    }

    fn heading(&self, name: &str, chosen: &[usize]) -> String {
        let plan = self.plan;
        let peak = plan.peak_step;
        let at_peak = chosen
            .iter()
            .filter(|&&i| plan.tensors.first[i] <= peak && peak <= plan.tensors.last[i])
            .map(|&i| plan.tensors.bytes[i])
            .sum::<u64>();
        let space = self.space();
        let line = match space.line_bytes {
            None => "there is no line".to_string(),
            Some(line) if line < space.total_bytes => {
                format!("the line of {} is too low", bytes(line))
            }
            Some(line) => format!("{} are left under the line", bytes(line - space.total_bytes)),
        };
        format!(
            "`{name}` in {}: {} of {} at the peak, step {} of {}; {line}.",
            plan.title,
            bytes(at_peak),
            bytes(plan.peak_bytes),
            peak + 1,
            plan.steps.layer.len()
        )
    }

    /// The time of a step in all micro-batches.
    fn time_of(&self, step: usize) -> u64 {
        let steps = &self.plan.steps;
        (steps.end_ns[step] - steps.start_ns[step]).saturating_mul(self.plan.micro_batches.max(1))
    }

    fn step_in_words(&self, step: u32) -> String {
        let (steps, at) = (&self.plan.steps, step as usize);
        let layer = &self.plan.layers[steps.layer[at] as usize];
        format!("step {} ({} of `{layer}`)", step + 1, self.plan.words[steps.what[at] as usize])
    }

    /// The planned peak if so many bytes more were held in these steps.
    fn peak_with(&self, more: u64, from: u32, to: u32) -> u64 {
        let held = &self.held[from as usize..=(to as usize).min(self.held.len() - 1)];
        let most = held.iter().max().copied().unwrap_or(0);
        let all = self.held.iter().max().copied().unwrap_or(0);
        self.space().outside_bytes() + self.plan.gap_bytes + all.max(most + more)
    }

    /// What keeping bytes in these steps would do to the peak.
    fn keeping(&self, more: u64, from: u32, to: u32) -> String {
        let (space, peak) = (self.space(), self.peak_with(more, from, to));
        let now = space.total_bytes;
        let rise = peak.saturating_sub(now);
        match space.line_bytes {
            _ if rise == 0 => "the peak would stay as it is: other things decided it".to_string(),
            Some(line) if peak > line => {
                format!(
                    "the peak would rise by {} to {}, {} above the line",
                    bytes(rise),
                    bytes(peak),
                    bytes(peak - line)
                )
            }
            _ => format!("the peak would rise by {} to {}", bytes(rise), bytes(peak)),
        }
    }

    /// What moving bytes to each tier and back would take.
    fn moving(&self, count: u64) -> Option<String> {
        let count = usize::try_from(count).ok()?;
        let rounds = self.plan.micro_batches.max(1);
        let ways = self.tiers.present().map(|(tier, _)| {
            let both = [Direction::Store, Direction::Load].map(|way| self.tiers.ns(tier, way, count));
            let time = both[0].saturating_add(both[1]).saturating_mul(rounds);
            format!("to {} and back {}", tier.name(), time_in_words(time))
        });
        let ways: Vec<String> = ways.collect();
        (!ways.is_empty()).then(|| ways.join(", "))
    }

    /// A tensor in a paragraph.
    fn tensor(&self, tensor: usize) -> String {
        let t = &self.plan.tensors;
        let (first, last, size) = (t.first[tensor], t.last[tensor], t.bytes[tensor]);
        let kind = self.kind(tensor);
        let peak = self.plan.peak_step;
        let at_peak = if first <= peak && peak <= last { "at the peak, too" } else { "not at the peak" };
        let mut text = format!(
            "{}, {}: {}, steps {} to {}, {at_peak}.\n  ",
            self.what(tensor),
            bytes(size),
            kind.name(),
            first + 1,
            last + 1
        );
        // Writing to a string does not fail.
        let _ = match kind {
            Kind::Parameter | Kind::Optimizer | Kind::Statistic => self.state(&mut text, size),
            Kind::Batch => write!(text, "It comes in with the batch, and is there until its last reader."),
            Kind::Saved => self.saved(&mut text, tensor),
            Kind::Rematerialized => self.rematerialized(&mut text, tensor),
            Kind::Offloaded => self.offloaded(&mut text, tensor),
            Kind::Gradient | Kind::Working => write!(
                text,
                "It is there from {} until its last reader, {}: there is nothing to choose.",
                self.step_in_words(first),
                self.step_in_words(last)
            ),
            Kind::Workspace => {
                write!(text, "It is scratch of one kernel, {}, and free after it.", self.step_in_words(first))
            }
        };
        text
    }

    fn state(&self, text: &mut String, size: u64) -> fmt::Result {
        write!(text, "It stays in memory, because there is room for it.")?;
        match self.moving(size) {
            Some(ways) => write!(
                text,
                " Offloaded, it would free {} while nothing uses it, and moving it in every step would take: {ways}.",
                bytes(size)
            ),
            None => write!(text, " There is no disk or host memory to offload it to."),
        }
    }

    fn saved(&self, text: &mut String, tensor: usize) -> fmt::Result {
        let t = &self.plan.tensors;
        let (first, last, size) = (t.first[tensor], t.last[tensor], t.bytes[tensor]);
        let again = self.time_of(first as usize);
        write!(
            text,
            "It is kept, because backward reads it: last in {}. Computed again there, by {}, it would take {} in a step, if its \
             inputs were still there",
            self.step_in_words(last),
            self.step_in_words(first),
            time_in_words(again)
        )?;
        if let Some(ways) = self.moving(size) {
            write!(text, "; moving it would take: {ways}, beside the computing where that lasts as long")?;
        }
        write!(text, ". Either way {} would be free in between.", bytes(size))
    }

    fn rematerialized(&self, text: &mut String, tensor: usize) -> fmt::Result {
        let t = &self.plan.tensors;
        let (first, size) = (t.first[tensor], t.bytes[tensor]);
        let steps = &self.plan.steps;
        let at = first as usize;
        let same = |&s: &usize| steps.layer[s] == steps.layer[at] && steps.what[s] == steps.what[at];
        let before = (0..at).rev().find(same);
        write!(
            text,
            "It is computed again in {}, which takes {} in a step.",
            self.step_in_words(first),
            time_in_words(self.time_of(at))
        )?;
        let Some(before) = before else { return Ok(()) };
        // Its first run's tensor ends somewhere in between.
        let ends = (0..t.len())
            .filter(|&i| t.layer[i] == t.layer[tensor] && t.what[i] == t.what[tensor] && t.last[i] < first);
        let from = ends.map(|i| t.last[i]).max().unwrap_or(before as u32);
        let between = (from + 1).min(first.saturating_sub(1));
        write!(
            text,
            " Kept since {} instead, it would hold {} in steps {} to {}: {}.",
            self.step_in_words(before as u32),
            bytes(size),
            between + 1,
            first,
            self.keeping(size, between, first.saturating_sub(1).max(between))
        )?;
        if let Some(ways) = self.moving(size) {
            write!(text, " Moving it instead would take: {ways}.")?;
        }
        Ok(())
    }

    fn offloaded(&self, text: &mut String, tensor: usize) -> fmt::Result {
        let t = &self.plan.tensors;
        let (first, last, size) = (t.first[tensor], t.last[tensor], t.bytes[tensor]);
        let moves = &self.plan.transfers;
        let nearby = moves.step.iter().enumerate().filter(|(_, s)| (first..=last).contains(*s));
        let same = |step: u32| self.plan.steps.layer[step as usize] == t.layer[tensor];
        let times: u64 = nearby
            .filter(|(i, s)| same(**s) && moves.bytes[*i] == size)
            .map(|(_, s)| self.time_of(*s as usize))
            .sum();
        write!(
            text,
            "It waits outside for a part of the step; its transfers in this time take {}, beside the computing where that lasts as long.",
            time_in_words(times)
        )?;
        // The other part of its life, before or after.
        let parts: Vec<usize> = (0..t.len())
            .filter(|&i| {
                i != tensor
                    && t.layer[i] == t.layer[tensor]
                    && t.bytes[i] == size
                    && self.kind(i) == Kind::Offloaded
            })
            .collect();
        let gap = parts.iter().find_map(|&i| {
            let before = (t.last[i] + 1 < first).then(|| (t.last[i] + 1, first - 1));
            before.or_else(|| (last + 1 < t.first[i]).then(|| (last + 1, t.first[i] - 1)))
        });
        match gap {
            Some((from, to)) => write!(
                text,
                " Kept in steps {} to {} instead: {}.",
                from + 1,
                to + 1,
                self.keeping(size, from, to)
            ),
            None => write!(
                text,
                " Kept all the time instead: {}.",
                self.keeping(size, 0, self.held.len() as u32 - 1)
            ),
        }
    }

    /// States of a name that live in a tier.
    fn offloaded_states(&self, name: &str) -> Vec<String> {
        let below = format!("{name}/");
        let of_name = |state: &str| !name.is_empty() && (state == name || state.starts_with(&below));
        let states = self.plans.states.iter().filter(|state| of_name(&state.name));
        let away = states.filter_map(|state| match state.home {
            StateHome::Offloaded { tier, .. } => Some((state, tier)),
            StateHome::Arena(_) => None,
        });
        let told = away.map(|(state, tier): (_, Tier)| {
            let count = state.ty.bytes();
            let both = [Direction::Load, Direction::Store].map(|way| self.tiers.ns(tier, way, count));
            format!(
                "{} {}, {}: lives in {}.\n  Under this line there is no room for it in memory between its uses. A load takes {}, a \
                 store {}, beside the computing where that lasts as long. Kept in memory instead: {}.",
                state.name,
                state.ty,
                in_words(count),
                tier.name(),
                time_in_words(both[0]),
                time_in_words(both[1]),
                self.keeping(count as u64, 0, self.held.len() as u32 - 1)
            )
        });
        told.take(MOST).collect()
    }
}
