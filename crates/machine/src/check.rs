//! From a file to a machine: everything that can be wrong, with its place.

use crate::file::{File, FileCpu, FileCuda, FileLink, FileNetwork, FileRoofline, FileSpace, Kind};
use crate::quantity::{BANDWIDTH, CLOCK, FLOPS, Quantity, TIME};
use crate::{Compute, Cores, Linked, Machine, MachineError, OneWay, Roofline, Space};
use plimsoll_cpu::isa::Isa;
use plimsoll_cuda::Gpu;
use plimsoll_cuda::target::CudaTarget;
use plimsoll_plan::{Link, Network, Size, in_words};
use std::ops::Range;
use std::path::Path;
use toml::Spanned;

/// Something wrong, and where it is in the text.
pub(crate) struct Fault {
    at: usize,
    message: String,
}

type Checked<T> = Result<T, Fault>;

impl Fault {
    fn new(span: Range<usize>, message: impl Into<String>) -> Self {
        Self { at: span.start, message: message.into() }
    }

    /// As an error that names the line.
    pub(crate) fn at(self, path: &Path, text: &str) -> MachineError {
        let before = text.as_bytes().iter().take(self.at).filter(|&&byte| byte == b'\n').count();
        let line = (before + 1).min(text.lines().count().max(1));
        MachineError::Line { path: path.into(), line, message: self.message }
    }
}

/// The share of a space's memory that is its line by default.
const LINE: Size = Size::Percent(90.0);
/// More threads, or multiprocessors, than any machine has.
const MOST_THREADS: i64 = 65_535;
/// The first compute capability that current compilers know.
const LEAST_CAPABILITY: (u32, u32) = (7, 5);

/// A space that is checked by itself, with its place.
struct Found {
    at: Range<usize>,
    kind: Kind,
    space: Space,
    compute: Option<Compute>,
}

/// Reads and checks a file.
pub(crate) fn check(text: &str) -> Checked<Machine> {
    let file: File = toml::from_str(text).map_err(|e| {
        Fault::new(e.span().unwrap_or(0..0), e.message().lines().collect::<Vec<_>>().join(" "))
    })?;
    name(&file.name)?;
    let spaces = file.space.iter().map(|s| space(s, file.name.get_ref())).collect::<Checked<Vec<_>>>()?;
    distinct(&spaces)?;
    let links = links(&spaces, &file.link)?;
    let host = spaces.iter().find(|s| s.kind == Kind::Host).ok_or_else(|| {
        let message = "no space is the host: add a [[space]] with kind = \"host\", whose memory the program itself uses";
        Fault::new(file.space.first().map_or(0..0, Spanned::span), message)
    })?;
    let compute = computing(&spaces, host)?.clone();
    let linked = |kind: Kind| {
        let found = spaces.iter().find(|s| s.kind == kind);
        found.map(|found| linked(found, host, &links)).transpose()
    };
    Ok(Machine {
        name: file.name.get_ref().clone(),
        device: linked(Kind::Device)?,
        file: linked(Kind::File)?,
        host: host.space.clone(),
        compute,
        network: file.network.as_ref().map(|written| network(written.get_ref())).transpose()?,
    })
}

fn network(written: &FileNetwork) -> Checked<Network> {
    Ok(Network {
        bytes_per_second: quantity(&BANDWIDTH, &written.bandwidth)?,
        latency_ns: quantity(&TIME, &written.latency)? as u64,
        at_once: usize::MAX,
        measured: Vec::new(),
    })
}

/// Refuses a name that cannot be read in a message.
fn name(name: &Spanned<String>) -> Checked<()> {
    let text = name.get_ref();
    match text.trim().is_empty() || text.chars().any(char::is_control) {
        true => Err(Fault::new(name.span(), "this name is empty or not one line: write one that is")),
        false => Ok(()),
    }
}

fn space(written: &Spanned<FileSpace>, machine: &str) -> Checked<Found> {
    let space = written.get_ref();
    name(&space.name)?;
    let memory_bytes = bytes(&space.memory)?;
    let line = match &space.line {
        None => LINE,
        Some(text) => size(text)?,
    };
    if let (Size::Bytes(line), Some(at)) = (line, &space.line)
        && line > memory_bytes
    {
        let [line, memory] = [line, memory_bytes].map(in_words);
        let name = space.name.get_ref();
        let message = format!("the line of `{name}`, {line}, is above its memory, {memory}: lower it");
        return Err(Fault::new(at.span(), message));
    }
    let kind = *space.kind.get_ref();
    let ways = [
        space.roofline.as_ref().map(Spanned::span),
        space.cuda.as_ref().map(Spanned::span),
        space.cpu.as_ref().map(Spanned::span),
    ];
    if let Some(second) = ways.into_iter().flatten().nth(1) {
        let message =
            "a space computes in one way: keep one of [space.roofline], [space.cuda] and [space.cpu]";
        return Err(Fault::new(second, message));
    }
    let compute = if let Some(roofline) = &space.roofline {
        Some(Compute::Roofline(self::roofline(roofline.get_ref(), machine)?))
    } else if let Some(cuda) = &space.cuda {
        if kind != Kind::Device {
            return Err(Fault::new(
                cuda.span(),
                "[space.cuda] is a GPU's: write it in a space of kind = \"device\"",
            ));
        }
        Some(Compute::Cuda(self::cuda(cuda.get_ref(), machine, memory_bytes)?))
    } else if let Some(cpu) = &space.cpu {
        if kind == Kind::Device {
            let message = "a device does not compute by [space.cpu]: write [space.cuda] or [space.roofline], or kind = \"host\"";
            return Err(Fault::new(cpu.span(), message));
        }
        Some(Compute::Cpu(self::cpu(cpu.get_ref())?))
    } else {
        None
    };
    let space = Space { name: space.name.get_ref().clone(), memory_bytes, line };
    Ok(Found { at: written.span(), kind, space, compute })
}

fn roofline(written: &FileRoofline, name: &str) -> Checked<Roofline> {
    Ok(Roofline {
        name: name.to_string(),
        f32_flops: quantity(&FLOPS, &written.f32)?,
        f16_flops: quantity(&FLOPS, &written.f16)?,
        bytes_per_second: quantity(&BANDWIDTH, &written.bandwidth)?,
        launch_ns: quantity(&TIME, &written.launch)? as u64,
        context_bytes: written.context.as_ref().map_or(Ok(0), bytes)?,
        workspace_bytes: written.workspace.as_ref().map_or(Ok(0), bytes)?,
    })
}

fn cuda(written: &FileCuda, name: &str, total_bytes: usize) -> Checked<CudaTarget> {
    let capability = written.capability.get_ref().split_once('.').and_then(|(major, minor)| {
        let number = |text: &str| text.parse::<u8>().ok().map(u32::from);
        Some((number(major)?, number(minor)?))
    });
    let capability = capability.filter(|&capability| capability >= LEAST_CAPABILITY).ok_or_else(|| {
        let (text, (major, minor)) = (written.capability.get_ref(), LEAST_CAPABILITY);
        let message =
            format!("compute capability `{text}` is not one from {major}.{minor} on: write one like 9.0");
        Fault::new(written.capability.span(), message)
    })?;
    let multiprocessors = *written.multiprocessors.get_ref();
    if !(1..=MOST_THREADS).contains(&multiprocessors) {
        let message = format!(
            "multiprocessors = {multiprocessors} is not from 1 to {MOST_THREADS}: write how many the GPU has"
        );
        return Err(Fault::new(written.multiprocessors.span(), message));
    }
    let gpu = Gpu {
        index: 0,
        name: name.to_string(),
        uuid: String::new(),
        capability,
        multiprocessors: multiprocessors as u32,
        clock_khz: (quantity(&CLOCK, &written.clock)? / 1e3) as u32,
        memory_bytes_per_second: quantity(&BANDWIDTH, &written.bandwidth)?,
        total_bytes,
        free_bytes: None,
        holders: Vec::new(),
    };
    let context_bytes = written.context.as_ref().map(bytes).transpose()?;
    Ok(CudaTarget {
        gpu,
        libraries: "libraries of a machine that is not here".into(),
        rates: None,
        context_bytes,
        link: Link::default(),
        tf32: false,
    })
}

fn cpu(written: &FileCpu) -> Checked<Cores> {
    let isa = Isa::ALL.into_iter().find(|isa| isa.name() == written.isa.get_ref()).ok_or_else(|| {
        let (text, known) = (written.isa.get_ref(), Isa::ALL.map(Isa::name).join(", "));
        Fault::new(written.isa.span(), format!("isa `{text}` is not known: write one of {known}"))
    })?;
    let threads = *written.threads.get_ref();
    if !(1..=MOST_THREADS).contains(&threads) {
        let message =
            format!("threads = {threads} is not from 1 to {MOST_THREADS}: write how many cores compute");
        return Err(Fault::new(written.threads.span(), message));
    }
    let mut cores = Cores::new(isa, threads as usize);
    if let Some(rate) = &written.f32_per_thread {
        cores.f32_flops = quantity(&FLOPS, rate)?;
    }
    if let Some(rate) = &written.bandwidth_per_thread {
        cores.bytes_per_second = quantity(&BANDWIDTH, rate)?;
    }
    Ok(cores)
}

/// Refuses names and kinds that occur twice.
fn distinct(spaces: &[Found]) -> Checked<()> {
    for (i, found) in spaces.iter().enumerate() {
        let Found { at, kind, space, .. } = found;
        for other in &spaces[..i] {
            if other.space.name == space.name {
                let message =
                    format!("there is a space `{}` already: give this one another name", space.name);
                return Err(Fault::new(at.clone(), message));
            }
            if other.kind == *kind {
                let (name, other, kind) = (&space.name, &other.space.name, kind.name());
                let message = format!(
                    "`{other}` and `{name}` are both of kind {kind}: a machine has one; remove this one"
                );
                return Err(Fault::new(at.clone(), message));
            }
        }
    }
    Ok(())
}

/// How the device computes, or the host if there is none. No other space may.
fn computing<'a>(spaces: &'a [Found], host: &'a Found) -> Checked<&'a Compute> {
    let device = spaces.iter().find(|s| s.kind == Kind::Device);
    let computes = device.unwrap_or(host);
    let name = &computes.space.name;
    let idle = spaces.iter().find(|s| s.compute.is_some() && s.kind != computes.kind);
    match (&computes.compute, idle) {
        (Some(compute), None) => Ok(compute),
        (Some(_), Some(idle)) => {
            let idle_name = &idle.space.name;
            let message =
                format!("`{idle_name}` does not compute, because `{name}` does: remove how it computes");
            Err(Fault::new(idle.at.clone(), message))
        }
        (None, _) => {
            let message = match device {
                Some(_) => format!(
                    "nothing computes in the device `{name}`: add [space.cuda] or [space.roofline] to it"
                ),
                None => format!(
                    "nothing computes: add [space.cpu] to `{name}`, or a device with [space.cuda] or [space.roofline]"
                ),
            };
            Err(Fault::new(computes.at.clone(), message))
        }
    }
}

/// A link whose ends are known.
struct FoundLink {
    at: Range<usize>,
    from: Kind,
    to: Kind,
    way: OneWay,
}

fn links(spaces: &[Found], written: &[Spanned<FileLink>]) -> Checked<Vec<FoundLink>> {
    let mut found: Vec<FoundLink> = Vec::new();
    for link in written {
        let (at, link) = (link.span(), link.get_ref());
        let end = |name: &Spanned<String>| {
            let space = spaces.iter().find(|s| s.space.name == *name.get_ref());
            space.map(|s| s.kind).ok_or_else(|| {
                let known: Vec<_> = spaces.iter().map(|s| s.space.name.as_str()).collect();
                let message =
                    format!("there is no space `{}`: there are {}", name.get_ref(), known.join(", "));
                Fault::new(name.span(), message)
            })
        };
        let (from, to) = (end(&link.from)?, end(&link.to)?);
        let names = format!("`{}` to `{}`", link.from.get_ref(), link.to.get_ref());
        if from == to {
            return Err(Fault::new(at, format!("the link from {names} leads to itself: remove it")));
        }
        if from != Kind::Host && to != Kind::Host {
            let message = format!(
                "the link from {names} makes a cycle: links join neighbours of the chain device - host - file; remove it"
            );
            return Err(Fault::new(at, message));
        }
        if found.iter().any(|other| (other.from, other.to) == (from, to)) {
            return Err(Fault::new(at, format!("there is a link from {names} already: remove one of them")));
        }
        let time =
            |text: &Option<Spanned<String>>| text.as_ref().map_or(Ok(0.0), |text| quantity(&TIME, text));
        let way = OneWay {
            bytes_per_second: quantity(&BANDWIDTH, &link.bandwidth)?,
            latency_ns: quantity(&TIME, &link.latency)? as u64,
            single_request_ns: time(&link.single_request)? as u64,
            request_cpu_ns: time(&link.request_cpu)? as u64,
        };
        found.push(FoundLink { at, from, to, way });
    }
    Ok(found)
}

/// A space with its links to the host and back.
fn linked(found: &Found, host: &Found, links: &[FoundLink]) -> Checked<Linked> {
    let way = |from: &Found, to: &Found| links.iter().find(|l| (l.from, l.to) == (from.kind, to.kind));
    let missing = |from: &Found, to: &Found, at: &Range<usize>| {
        let (from, to) = (&from.space.name, &to.space.name);
        let message = format!("there is no link from `{from}` to `{to}`: add a [[link]] for this direction");
        Fault::new(at.clone(), message)
    };
    match (way(found, host), way(host, found)) {
        (Some(to), Some(from)) => {
            Ok(Linked { space: found.space.clone(), to_host: to.way, from_host: from.way })
        }
        (Some(there), None) => Err(missing(host, found, &there.at)),
        (None, Some(back)) => Err(missing(found, host, &back.at)),
        (None, None) => Err(missing(found, host, &found.at)),
    }
}

fn quantity(quantity: &Quantity, text: &Spanned<String>) -> Checked<f64> {
    quantity.parse(text.get_ref()).map_err(|message| Fault::new(text.span(), message))
}

fn size(text: &Spanned<String>) -> Checked<Size> {
    text.get_ref().trim().parse::<Size>().map_err(|e| Fault::new(text.span(), e.to_string()))
}

/// An amount of memory, not a share.
fn bytes(text: &Spanned<String>) -> Checked<usize> {
    match size(text)? {
        Size::Bytes(bytes) => Ok(bytes),
        Size::Percent(_) => {
            let message = format!("`{}` is a share of nothing: write bytes, like 16GB", text.get_ref());
            Err(Fault::new(text.span(), message))
        }
    }
}
