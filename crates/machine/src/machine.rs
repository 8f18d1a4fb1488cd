//! A machine: its spaces, its links, and what a planner asks of them.

use crate::check::check;
use crate::file::{File, FileCpu, FileCuda, FileLink, FileNetwork, FileRoofline, FileSpace, Kind};
use crate::quantity::{BANDWIDTH, CLOCK, FLOPS, TIME, write_bytes, write_size};
use crate::{MachineError, Roofline};
use plimsoll_cpu::{CpuTarget, DISK_STAGING_BYTES, isa::Isa};
use plimsoll_cuda::target::CudaTarget;
use plimsoll_cuda::{DEVICE_STAGING_BYTES, Gpu};
use plimsoll_plan::{Link, Network, Size, Target, TierSpec, Tiers};
use std::path::Path;
use toml::Spanned;

/// A machine that can be planned for: the chain device - host - file, in which one space computes.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// Its name.
    pub name: String,
    /// The memory of a device.
    pub device: Option<Linked>,
    /// Host memory.
    pub host: Space,
    /// The disk of the spill file.
    pub file: Option<Linked>,
    /// How the device computes, or the host if there is none.
    pub compute: Compute,
    /// What connects it to others like it, for runs of several processes: one on each.
    pub network: Option<Network>,
}

/// A memory space.
#[derive(Clone, Debug, PartialEq)]
pub struct Space {
    /// Its name.
    pub name: String,
    /// How many bytes it has.
    pub memory_bytes: usize,
    /// The line, unless a flag gives another: bytes, or a share of the memory.
    pub line: Size,
}

/// How a machine computes.
#[derive(Clone, Debug, PartialEq)]
pub enum Compute {
    /// By a roofline: rates of arithmetic and memory.
    Roofline(Roofline),
    /// By the kernels of the executor for NVIDIA GPUs.
    Cuda(CudaTarget),
    /// By the kernels of the CPU executor.
    Cpu(Cores),
}

/// Cores that compute by the kernels of the CPU executor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cores {
    /// The instruction set.
    pub isa: Isa,
    /// How many threads compute.
    pub threads: usize,
    /// Floating-point operations per second at the peak of one thread.
    pub f32_flops: f64,
    /// Bytes per second that one thread moves from and to memory.
    pub bytes_per_second: f64,
}

impl Cores {
    /// Cores with typical rates of their instruction set.
    pub fn new(isa: Isa, threads: usize) -> Self {
        let CpuTarget { flops_per_ns, bytes_per_ns, .. } = CpuTarget::new(isa, threads);
        Self { isa, threads, f32_flops: flops_per_ns * 1e9, bytes_per_second: bytes_per_ns * 1e9 }
    }

    fn target(self) -> CpuTarget {
        let Self { isa, threads, f32_flops, bytes_per_second } = self;
        CpuTarget { isa, threads, flops_per_ns: f32_flops / 1e9, bytes_per_ns: bytes_per_second / 1e9 }
    }
}

/// A space with its links to the host.
#[derive(Clone, Debug, PartialEq)]
pub struct Linked {
    /// The space.
    pub space: Space,
    /// From it to the host.
    pub to_host: OneWay,
    /// From the host to it.
    pub from_host: OneWay,
}

/// A link in one direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OneWay {
    /// Bytes per second.
    pub bytes_per_second: f64,
    /// Latency of a transfer.
    pub latency_ns: u64,
    /// Additional latency of a MiB that is transferred alone.
    pub single_request_ns: u64,
    /// Processor time for every MiB.
    pub request_cpu_ns: u64,
}

impl Machine {
    /// Parses a machine file; `path` is its name in messages. A file is untrusted input: every number is checked.
    pub fn parse(path: &Path, text: &str) -> Result<Self, MachineError> {
        check(text).map_err(|fault| fault.at(path, text))
    }

    /// The machine with products in TF32, if it is a GPU that has them ([`Gpu::has_tf32`]); otherwise as it is.
    pub fn in_tf32(mut self) -> Self {
        if let Compute::Cuda(target) = &mut self.compute {
            target.tf32 = target.gpu.has_tf32();
        }
        self
    }

    /// The space that computes.
    pub fn computing(&self) -> &Space {
        self.device.as_ref().map_or(&self.host, |device| &device.space)
    }

    /// What computes, as a target to plan for.
    pub fn target(&self) -> Box<dyn Target> {
        match &self.compute {
            Compute::Roofline(roofline) => Box::new(roofline.clone()),
            Compute::Cuda(gpu) => {
                let link = self.device.as_ref().map(|device| link(&device.from_host, &device.to_host));
                Box::new(CudaTarget { link: link.unwrap_or_default(), ..gpu.clone() })
            }
            Compute::Cpu(cores) => Box::new(cores.target()),
        }
    }

    /// The tiers behind the space that computes. A device reaches the file through the host.
    pub fn tiers(&self) -> Tiers {
        let to_host = self.device.as_ref().map(|device| link(&device.from_host, &device.to_host));
        let to_file = self.file.as_ref().map(|file| {
            let link = link(&file.to_host, &file.from_host);
            let link = to_host.map_or(link, |to_host| to_host.through(link));
            let capacity_bytes = file.space.line_bytes() as u64;
            let staging_bytes = if to_host.is_some() { DEVICE_STAGING_BYTES } else { DISK_STAGING_BYTES };
            TierSpec { capacity_bytes, link, staging_bytes }
        });
        let capacity_bytes = self.host.memory_bytes as u64;
        let host = to_host.map(|link| TierSpec { capacity_bytes, link, staging_bytes: 0 });
        Tiers { host, file: to_file }
    }

    /// The machine as a file, which parses as the same machine.
    pub fn to_toml(&self) -> String {
        let Self { name, device, host, file, compute, network } = self;
        let written = |space: &Space, kind| {
            let computes = std::ptr::eq(space, self.computing());
            spanned(write_space(space, kind, computes.then_some(compute)))
        };
        let ends = [(device, Kind::Device), (file, Kind::File)]
            .map(|(linked, kind)| linked.as_ref().map(|linked| written(&linked.space, kind)));
        let [device_space, file_space] = ends;
        let spaces = [device_space, Some(written(host, Kind::Host)), file_space];
        let links = device.iter().chain(file).flat_map(|linked| {
            let ends = [linked.space.name.as_str(), host.name.as_str()];
            [write_link(ends, &linked.to_host), write_link([ends[1], ends[0]], &linked.from_host)]
        });
        let network = network.as_ref().map(|network| {
            spanned(FileNetwork {
                bandwidth: spanned(BANDWIDTH.write(network.bytes_per_second)),
                latency: spanned(TIME.write(network.latency_ns as f64)),
            })
        });
        let file = File {
            name: spanned(name.clone()),
            network,
            space: spaces.into_iter().flatten().collect(),
            link: links.map(spanned).collect(),
        };
        // Strings and whole numbers in tables can always be written.
        toml::to_string(&file).unwrap_or_default()
    }
}

impl Space {
    /// The line, unless a flag gives another.
    pub fn line_bytes(&self) -> usize {
        self.line.bytes(self.memory_bytes)
    }
}

/// The planner's description of a link.
fn link(load: &OneWay, store: &OneWay) -> Link {
    let ns_per_mib = |way: &OneWay| (f64::from(1 << 20) * 1e9 / way.bytes_per_second) as u64;
    Link {
        load_ns_per_mib: ns_per_mib(load),
        store_ns_per_mib: ns_per_mib(store),
        latency_ns: load.latency_ns.max(store.latency_ns),
        single_request_ns: load.single_request_ns.max(store.single_request_ns),
        request_cpu_ns: load.request_cpu_ns.max(store.request_cpu_ns),
    }
}

fn spanned<T>(value: T) -> Spanned<T> {
    Spanned::new(0..0, value)
}

fn write_space(space: &Space, kind: Kind, compute: Option<&Compute>) -> FileSpace {
    let (mut roofline, mut cuda, mut cpu) = (None, None, None);
    match compute {
        Some(Compute::Roofline(r)) => {
            roofline = Some(spanned(FileRoofline {
                f32: spanned(FLOPS.write(r.f32_flops)),
                f16: spanned(FLOPS.write(r.f16_flops)),
                bandwidth: spanned(BANDWIDTH.write(r.bytes_per_second)),
                launch: spanned(TIME.write(r.launch_ns as f64)),
                context: (r.context_bytes > 0).then(|| spanned(write_bytes(r.context_bytes))),
                workspace: (r.workspace_bytes > 0).then(|| spanned(write_bytes(r.workspace_bytes))),
            }));
        }
        Some(Compute::Cuda(CudaTarget { gpu, context_bytes, .. })) => {
            let Gpu { capability: (major, minor), multiprocessors, clock_khz, .. } = gpu;
            cuda = Some(spanned(FileCuda {
                capability: spanned(format!("{major}.{minor}")),
                multiprocessors: spanned(i64::from(*multiprocessors)),
                clock: spanned(CLOCK.write(f64::from(*clock_khz) * 1e3)),
                bandwidth: spanned(BANDWIDTH.write(gpu.memory_bytes_per_second)),
                context: context_bytes.map(|bytes| spanned(write_bytes(bytes))),
            }));
        }
        Some(Compute::Cpu(c)) => {
            cpu = Some(spanned(FileCpu {
                isa: spanned(c.isa.name().to_string()),
                threads: spanned(c.threads as i64),
                f32_per_thread: Some(spanned(FLOPS.write(c.f32_flops))),
                bandwidth_per_thread: Some(spanned(BANDWIDTH.write(c.bytes_per_second))),
            }));
        }
        None => {}
    }
    FileSpace {
        name: spanned(space.name.clone()),
        kind: spanned(kind),
        memory: spanned(write_bytes(space.memory_bytes)),
        line: Some(spanned(write_size(space.line))),
        roofline,
        cuda,
        cpu,
    }
}

fn write_link([from, to]: [&str; 2], way: &OneWay) -> FileLink {
    let time = |ns: u64| spanned(TIME.write(ns as f64));
    FileLink {
        from: spanned(from.to_string()),
        to: spanned(to.to_string()),
        bandwidth: spanned(BANDWIDTH.write(way.bytes_per_second)),
        latency: time(way.latency_ns),
        single_request: (way.single_request_ns > 0).then(|| time(way.single_request_ns)),
        request_cpu: (way.request_cpu_ns > 0).then(|| time(way.request_cpu_ns)),
    }
}
