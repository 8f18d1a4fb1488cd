//! The exchanges of a step, followed through all devices: a proof that none waits for ever, and how long they take.

use crate::transport::{Message, Passing, STATE_PIECE, Transport, exchange};
use plimsoll_graph::{Graph, Op};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Proves of the parts of a step, by device, that no device waits for another one for ever, and that all that passes arrives as it was
/// sent: it follows all exchanges through the step, each device in the order of its graph (`verify` proves that a plan keeps
/// it, where one waits until what it gives is taken). Every wait is for one thing that one other device does, and nothing takes it back. So
/// whether a wait ends does not depend on how fast a device is, and following them once is enough. What is given waits here until
/// it is taken; a connection that copies it waits less.
pub fn check_passes(parts: &[&Graph]) -> Result<(), String> {
    communication(parts, &[], &Network::INSTANT).map(|_| ())
}

/// What connects the devices of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    /// Bytes in a second that a device sends, and another one receives at the same time: of messages that are longer than all of `measured`.
    pub bytes_per_second: f64,
    /// Time from when a message is sent to when another device that waits for it begins to receive it: one that comes later does not wait.
    pub latency_ns: u64,
    /// Messages that pass at the same time at most: processes of one machine copy on its cores.
    pub at_once: usize,
    /// Bytes of messages and what they take in nanoseconds, without the latency, in ascending order; those between take what lies between.
    /// Empty where only a bandwidth is known.
    pub measured: Vec<(usize, u64)>,
}

impl Network {
    /// One that takes no time.
    pub(crate) const INSTANT: Self =
        Self { bytes_per_second: f64::INFINITY, latency_ns: 0, at_once: 1, measured: Vec::new() };

    /// What a message takes, without the latency.
    fn ns(&self, bytes: usize) -> u64 {
        let at = self.measured.partition_point(|&(measured, _)| measured <= bytes);
        let (from, start) = if at == 0 { (0, 0) } else { self.measured[at - 1] };
        let ns_per_byte = match self.measured.get(at) {
            Some(&(to, end)) => end.saturating_sub(start) as f64 / (to - from) as f64,
            None => 1e9 / self.bytes_per_second,
        };
        start + ((bytes - from) as f64 * ns_per_byte) as u64
    }
}

/// How long all exchanges of a step take that does nothing else, from its parts by device. After it the new version of each of `states`,
/// given as the device that has it and its bytes, passes to all others.
pub fn communication(parts: &[&Graph], states: &[(usize, usize)], network: &Network) -> Result<u64, String> {
    let count = parts.len();
    let passes = parts.iter().enumerate().map(|(device, part)| exchanges(part, (device, count), states));
    let ends = follow(&passes.collect::<Result<Vec<_>, _>>()?, network)?;
    Ok(ends.into_iter().max().unwrap_or(0))
}

/// Follows all exchanges of a step, by device, and returns when the last one of each is over.
pub(crate) fn follow(passes: &[Vec<Exchanged>], network: &Network) -> Result<Vec<u64>, String> {
    let count = passes.len();
    let mut walk = Walk {
        network: network.clone(),
        devices: passes.iter().map(|_| Progress::default()).collect(),
        posted: BTreeMap::new(),
        lanes: vec![0; network.at_once.clamp(1, count.max(1))],
    };
    while walk.go_on(passes)? {}
    let stuck = |(device, passes): (usize, &Vec<Exchanged>)| {
        Some(passes.get(walk.devices[device].done)?.waits(device))
    };
    let stuck: Vec<String> = passes.iter().enumerate().filter_map(stuck).collect();
    if !stuck.is_empty() {
        return Err(format!("the devices exchange out of turn: {}", stuck.join(", ")));
    }
    match walk.posted.into_iter().find(|(_, messages)| !messages.is_empty()) {
        Some(((from, to, chain), _)) => {
            Err(format!("device {to} never takes value {chain} of device {from}"))
        }
        None => Ok(walk.devices.iter().map(|device| device.now).collect()),
    }
}

/// What stands in the place of a layer where a device passes the new version of a state.
pub const STATES: &str = "states";

/// One thing that a device does in an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchanged {
    /// What it does.
    pub passing: Passing,
    /// Bytes of the value.
    pub bytes: usize,
    /// The layer.
    pub layer: Arc<str>,
    /// The op.
    pub op: &'static str,
    /// What the device computes before it, in nanoseconds, if that is asked for.
    pub computing_ns: u64,
}

impl Exchanged {
    fn waits(&self, device: usize) -> String {
        let other = match self.passing {
            Passing::Receive(other, _) | Passing::Send(other, _) | Passing::Hand(other, _) => {
                other.to_string()
            }
            Passing::Clear | Passing::AllReduce => "all".into(),
        };
        format!("device {device} waits for {other} in layer `{}` ({})", self.layer, self.op)
    }
}

/// All that a device, by its number and that of all devices, exchanges in a step, in the order of its part; then the new versions of
/// states, as for [`communication`].
pub fn exchanges(
    part: &Graph,
    (device, devices): (usize, usize),
    states: &[(usize, usize)],
) -> Result<Vec<Exchanged>, String> {
    let (once, count) = (part.optimizer_step(), part.micro_batches);
    let phases = (0..count).map(|micro_batch| (micro_batch, false)).chain([(0, true)]);
    let mut found = Vec::new();
    for (micro_batch, late) in phases {
        for (node, _) in part.nodes.iter().zip(&once).filter(|(_, once)| **once == late) {
            let Op::Exchange(op) = &node.op else { continue };
            exchange(op, &Place { device, devices }, (micro_batch, count), |sum, passing| {
                let value = match passing {
                    Passing::Hand(..) => node.inputs[0],
                    _ => node.outputs[sum],
                };
                let (bytes, layer, op) = (part.ty(value).bytes(), node.layer.clone(), node.op.name());
                found.push(Exchanged { passing, bytes, layer, op, computing_ns: 0 });
                Ok(())
            })?;
        }
    }
    let layer: Arc<str> = STATES.into();
    for (number, &(owner, bytes)) in states.iter().enumerate() {
        let message = Message { chain: number as u32, micro_batch: Message::SHARED };
        for first in (0..bytes).step_by(STATE_PIECE) {
            let bytes = STATE_PIECE.min(bytes - first);
            let piece =
                |passing| Exchanged { passing, bytes, layer: layer.clone(), op: "share", computing_ns: 0 };
            match owner == device {
                true => {
                    let others = (0..devices).filter(|&other| other != device);
                    found.extend(others.map(|other| piece(Passing::Send(other, message))));
                }
                false => found.push(piece(Passing::Receive(owner, message))),
            }
        }
    }
    Ok(found)
}

/// How far a device has come.
#[derive(Clone, Default)]
struct Progress {
    /// Exchanges that are over.
    done: usize,
    /// When the last of them was, and when it has sent and received all messages so far.
    now: u64,
    sent: u64,
    received: u64,
    /// Whether it waits for what it gave to be taken.
    offers: bool,
    /// Exchanges that it has come to.
    reached: usize,
}

/// A message that was sent and not received yet.
struct Posted {
    message: Message,
    bytes: usize,
    at: u64,
}

/// The devices on their way through a step.
struct Walk {
    network: Network,
    devices: Vec<Progress>,
    /// By sender, receiver and chain.
    posted: BTreeMap<(usize, usize, u32), VecDeque<Posted>>,
    /// When each of the messages that pass at the same time has passed.
    lanes: Vec<u64>,
}

impl Walk {
    /// Lets one device go on: of those that do not wait, the one that is furthest behind. Returns whether there was one.
    fn go_on(&mut self, passes: &[Vec<Exchanged>]) -> Result<bool, String> {
        let mut order: Vec<usize> = (0..passes.len()).collect();
        for (own, passes) in self.devices.iter_mut().zip(passes) {
            if let Some(next) = passes.get(own.done).filter(|_| own.reached == own.done) {
                own.now = own.now.saturating_add(next.computing_ns);
                own.reached += 1;
            }
        }
        order.sort_by_key(|&device| self.devices[device].now);
        for &device in &order {
            let Some(next) = passes[device].get(self.devices[device].done) else { continue };
            let offered = self.devices[device].offers;
            if self.pass(device, next)? {
                self.devices[device].done += 1;
                return Ok(true);
            }
            // Another device may take what this one has just offered.
            if self.devices[device].offers && !offered {
                return Ok(true);
            }
        }
        let meets = |&device: &usize| {
            let next = passes[device].get(self.devices[device].done);
            next.is_some_and(|next| next.passing == Passing::AllReduce)
        };
        if order.is_empty() || !order.iter().all(meets) {
            return Ok(false);
        }
        self.add_up(passes[order[0]][self.devices[order[0]].done].bytes);
        Ok(true)
    }

    /// All devices add a sum up: as long as the least that has to pass takes, in as many rounds as a ring has.
    fn add_up(&mut self, bytes: usize) {
        let (count, start) = (self.devices.len(), self.devices.iter().map(|device| device.now).max());
        let rounds = 2 * count.saturating_sub(1);
        let crowded = count.div_ceil(self.lanes.len()) as u64;
        let round = self.network.latency_ns + self.network.ns(bytes / count.max(1)) * crowded;
        for device in &mut self.devices {
            device.done += 1;
            device.now = start.unwrap_or(0) + rounds as u64 * round;
        }
    }

    /// Whether a device gets past an exchange.
    fn pass(&mut self, device: usize, next: &Exchanged) -> Result<bool, String> {
        match next.passing {
            Passing::Clear => Ok(true),
            Passing::AllReduce => Ok(false),
            Passing::Send(to, message) => {
                self.post((device, to), message, next.bytes);
                Ok(true)
            }
            Passing::Hand(to, message) => {
                if !std::mem::replace(&mut self.devices[device].offers, true) {
                    self.post((device, to), message, next.bytes);
                }
                let taken = self.posted.get(&(device, to, message.chain)).is_none_or(VecDeque::is_empty);
                let own = &mut self.devices[device];
                own.offers = !taken;
                if taken {
                    own.now = own.now.max(own.sent);
                }
                Ok(taken)
            }
            Passing::Receive(from, message) => {
                let sent = self.posted.get_mut(&(from, device, message.chain)).and_then(VecDeque::pop_front);
                let Some(sent) = sent else { return Ok(false) };
                if (sent.message, sent.bytes) != (message, next.bytes) {
                    let (layer, chain) = (&next.layer, message.chain);
                    return Err(format!(
                        "layer `{layer}`: value {chain} is not what device {from} sends to {device}"
                    ));
                }
                self.arrive(from, device, &sent);
                Ok(true)
            }
        }
    }

    /// A message passes as soon as both devices and the way between them are free.
    fn arrive(&mut self, from: usize, to: usize, sent: &Posted) {
        let free = (0..self.lanes.len()).min_by_key(|&lane| self.lanes[lane]).unwrap_or(0);
        let there = sent.at + self.network.latency_ns;
        let ready = self.devices[to].now.max(self.devices[to].received).max(there);
        let start = ready.max(self.devices[from].sent).max(self.lanes[free]);
        let end = start + self.network.ns(sent.bytes);
        self.lanes[free] = end;
        self.devices[from].sent = end;
        self.devices[to].received = end;
        self.devices[to].now = end;
    }

    fn post(&mut self, (from, to): (usize, usize), message: Message, bytes: usize) {
        let at = self.devices[from].now;
        self.posted.entry((from, to, message.chain)).or_default().push_back(Posted { message, bytes, at });
    }
}

/// Where a device stands among the others: all that is asked of a connection here.
pub(crate) struct Place {
    pub device: usize,
    pub devices: usize,
}

impl Transport for Place {
    fn device(&self) -> usize {
        self.device
    }

    fn devices(&self) -> usize {
        self.devices
    }

    unsafe fn send(&self, _: usize, _: Message, _: &[u8]) -> Result<(), String> {
        Ok(())
    }

    fn hand(&self, _: usize, _: Message, _: &[u8]) -> Result<(), String> {
        Ok(())
    }

    fn receive(&self, _: usize, _: Message, _: &mut [u8]) -> Result<(), String> {
        Ok(())
    }

    fn finish(&self) -> Result<(), String> {
        Ok(())
    }
}
