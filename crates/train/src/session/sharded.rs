//! Runs whose processes hold different states. For weights the first one asks the others, piece by piece, for what they alone hold.

use super::Session;
use crate::TrainError;
use crate::files::tensor_file::{Live, States};
use plimsoll_graph::Role;
use plimsoll_plan::Ranks;
use plimsoll_tensor::TensorType;
use plimsoll_transform::OwnedState;
use std::ops::Range;

/// Bytes of a request.
const REQUEST: usize = 24;

/// A piece of a state that another process holds; an empty one ends the requests.
struct Request {
    /// Among the states that one process updates.
    state: usize,
    bytes: Range<usize>,
}

impl Request {
    fn encode(&self) -> [u8; REQUEST] {
        let mut encoded = [0; REQUEST];
        let words = [self.state, self.bytes.start, self.bytes.end];
        for (to, word) in encoded.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&(word as u64).to_le_bytes());
        }
        encoded
    }

    fn decode(encoded: &[u8; REQUEST]) -> Self {
        let word = |at: usize| {
            let bytes = std::array::from_fn(|i| encoded[at * 8 + i]);
            usize::try_from(u64::from_le_bytes(bytes)).unwrap_or(usize::MAX)
        };
        Self { state: word(0), bytes: word(1)..word(2) }
    }
}

/// All states of a run: those of this process, and those that others alone hold.
pub(super) struct Gathered<'s> {
    live: Live<'s>,
    owned: &'s [OwnedState],
    /// Where the others' are among the owned ones.
    elsewhere: Vec<usize>,
    /// The way to them, where there are some.
    ranks: Option<&'s dyn Ranks>,
}

impl Gathered<'_> {
    fn other(&self, state: usize) -> &OwnedState {
        &self.owned[self.elsewhere[state - self.live.states.len()]]
    }

    /// Tells the others that nothing more is asked for.
    pub fn close(&self) -> Result<(), TrainError> {
        let Some(ranks) = self.ranks else { return Ok(()) };
        let end = Request { state: 0, bytes: 0..0 }.encode();
        (1..ranks.devices()).try_for_each(|to| ranks.give(to, &end)).map_err(TrainError::Ranks)
    }
}

impl States for Gathered<'_> {
    fn name(&self, state: usize) -> &str {
        if state < self.live.states.len() { self.live.name(state) } else { &self.other(state).name }
    }

    fn ty(&self, state: usize) -> &TensorType {
        if state < self.live.states.len() { self.live.ty(state) } else { &self.other(state).ty }
    }

    fn read(&self, state: usize, offset: usize, into: &mut [u8]) -> Result<(), TrainError> {
        let Some(ranks) = self.ranks.filter(|_| state >= self.live.states.len() && !into.is_empty()) else {
            return self.live.read(state, offset, into);
        };
        let owner = self.other(state).owner;
        let asked = self.elsewhere[state - self.live.states.len()];
        let request = Request { state: asked, bytes: offset..offset + into.len() }.encode();
        ranks.give(owner, &request).map_err(TrainError::Ranks)?;
        ranks.take(owner, into).map_err(TrainError::Ranks)
    }
}

impl Session {
    /// Whether processes hold different states.
    pub(super) fn is_sharded(&self) -> bool {
        self.trainer.connected().is_some() && !self.owned.is_empty()
    }

    /// Whether parameters pass between processes in every batch: all run the same batches then.
    pub(super) fn fetches_parameters(&self) -> bool {
        let passes =
            |state: &OwnedState| state.alone && matches!(state.role, Role::Parameter | Role::Average);
        self.trainer.connected().is_some() && self.owned.iter().any(passes)
    }

    /// All states by their numbers in [`Session::gathered`], with their roles, in the order of one process.
    pub(super) fn all_roles(&self) -> Vec<(usize, Role)> {
        let held = self.whole.states.len();
        let mut own = self.whole.states.iter().map(|state| state.role).enumerate();
        let mut others = self.elsewhere().enumerate().peekable();
        let mut all = Vec::with_capacity(held);
        loop {
            let other = others.next_if(|(_, state)| state.place == all.len());
            let next = other.map(|(at, state)| (held + at, state.role)).or_else(|| own.next());
            // Behind the last of its own, all that is left is elsewhere.
            let next = next.or_else(|| others.next().map(|(at, state)| (held + at, state.role)));
            match next {
                Some(next) => all.push(next),
                None => return all,
            }
        }
    }

    /// The states that other processes alone hold.
    pub(super) fn elsewhere(&self) -> impl Iterator<Item = &OwnedState> {
        let rank = self.trainer.connected().map(|ranks| ranks.device());
        self.owned.iter().filter(move |state| state.alone && rank.is_some_and(|rank| rank != state.owner))
    }

    /// All states, for the process that saves them.
    pub(super) fn gathered(&self) -> Gathered<'_> {
        let own = |at: &usize| self.whole.states.iter().any(|state| state.name == self.owned[*at].name);
        Gathered {
            live: self.live(),
            owned: &self.owned,
            elsewhere: (0..self.owned.len()).filter(|at| !own(at)).collect(),
            ranks: self.trainer.connected().map(AsRef::as_ref).filter(|_| self.is_sharded()),
        }
    }

    /// Gives the first process what this one alone holds, as long as it asks.
    pub(super) fn serve_states(&self) -> Result<(), TrainError> {
        let Some(ranks) = self.trainer.connected() else { return Ok(()) };
        let mut buffer = self.buffer.borrow_mut();
        loop {
            let mut request = [0; REQUEST];
            ranks.take(0, &mut request).map_err(TrainError::Ranks)?;
            let Request { state, bytes } = Request::decode(&request);
            if bytes.is_empty() {
                return Ok(());
            }
            let name = self.owned.get(state).map(|state| state.name.as_str()).unwrap_or_default();
            let piece = buffer.get_mut(..bytes.len());
            let piece = piece.ok_or_else(|| TrainError::Ranks("rank 0 asked for too much at once".into()))?;
            self.prepared.read_state(self.state_index(name)?, bytes.start, piece)?;
            ranks.give(0, piece).map_err(TrainError::Ranks)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_they_were_written() {
        let found = Request::decode(&Request { state: 7, bytes: 1 << 40..(1 << 40) + 5 }.encode());
        assert_eq!((found.state, found.bytes), (7, 1 << 40..(1 << 40) + 5));
    }
}
