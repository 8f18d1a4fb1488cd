//! An executor that runs the generated kernels as code of the host: right where a GPU is right, on machines that have none.
//!
//! A kernel's source is compiled by the host's C++ compiler behind a shim (`shim.h`) and run thread by thread (`fibers.cpp`).
//! Products are plain loops.

mod compile;
mod product;
mod tiers;

use crate::kernels::joins;
use crate::{Call, Fault, Kernel, Launch, Matrix, Operand, Parameter, Pointer, find, join, target};
use compile::{HostKernel, kernel};
use plimsoll_graph::Numerics;
use plimsoll_plan::{
    Connection, ExecuteError, Executor, KernelQuery, Link, PlanSet, Prepared, Target, TierSpec, Tiers,
    Unsupported,
};
use plimsoll_runtime::arena::Arena;
use plimsoll_runtime::transfer::{DEVICE_STAGING_BYTES, StagedQueue};
use plimsoll_runtime::{
    Device, KernelDevice, KernelExecutor, KernelSession, Operands, Options, Queues, prepare,
};
use std::ffi::c_void;
use std::path::PathBuf;
use std::sync::Arc;
use tiers::{HostLane, HostTier};

/// An executor whose device is the host.
pub struct Emulator {
    options: Options,
    /// The folder of the spill file, if it offloads.
    spill: Option<PathBuf>,
    target: EmulatedTarget,
}

/// The link to host memory, and that to a disk behind it, as plans have them.
const LINK: Link = Link {
    load_ns_per_mib: 50_000,
    store_ns_per_mib: 50_000,
    latency_ns: 0,
    single_request_ns: 0,
    request_cpu_ns: 0,
};
const DISK: Link = Link { load_ns_per_mib: 500_000, store_ns_per_mib: 500_000, ..LINK };

/// There is no C++ compiler.
#[derive(Clone, Debug, thiserror::Error)]
#[error("emulated CUDA kernels need a C++ compiler: set CXX, or install one as `c++` ({0})")]
pub struct NoCompiler(String);

impl Emulator {
    /// The emulator of this machine.
    pub fn new() -> Result<Self, NoCompiler> {
        compile::check_compiler().map_err(NoCompiler)?;
        Ok(Self { options: Options::default(), spill: None, target: EmulatedTarget { tf32: false } })
    }

    /// An emulator in the runtime's checked mode.
    pub fn checked(self) -> Self {
        Self { options: Options { checked: true, ..self.options }, ..self }
    }

    /// An emulator that offloads to memory of the host, and to a file in a folder. It has neither, unless told.
    pub fn spilling(self, folder: impl Into<PathBuf>) -> Self {
        Self { spill: Some(folder.into()), ..self }
    }

    /// An emulator that rounds the f32 operands of products to TF32: to the nearest, ties away from zero, as the instruction
    /// `cvt.rna.tf32.f32` does.
    pub fn tf32(self) -> Self {
        Self { target: EmulatedTarget { tf32: true }, ..self }
    }

    /// What computes.
    fn device(&self) -> EmulatedDevice {
        EmulatedDevice { tf32: self.target.tf32 }
    }

    fn prepare_with(
        &self,
        plans: Arc<PlanSet>,
        options: &Options,
    ) -> Result<Box<dyn KernelSession>, ExecuteError> {
        let queues = |plans: &PlanSet| {
            let host = (plans.tier_bytes.host > 0).then(|| HostTier::new(plans.tier_bytes.host as usize));
            let host = host.transpose().map_err(|e| ExecuteError::Transfer(e.to_string()))?;
            let lane = || Ok(Box::new(HostLane) as _);
            let file = StagedQueue::for_run(self.spill.as_deref(), plans.tier_bytes.file, lane)?;
            Ok(Queues { host: host.map(|tier| Box::new(tier) as _), file })
        };
        prepare(plans, &self.target, Arc::new(self.device()), queues, options)
    }
}

impl Executor for Emulator {
    fn target(&self) -> &dyn Target {
        &self.target
    }

    fn tiers(&self) -> Tiers {
        let tier = |link, staging_bytes| TierSpec { capacity_bytes: u64::MAX, link, staging_bytes };
        match self.spill {
            Some(_) => Tiers {
                host: Some(tier(LINK, 0)),
                file: Some(tier(LINK.through(DISK), DEVICE_STAGING_BYTES)),
            },
            None => Tiers::default(),
        }
    }

    fn prepare(&self, plans: Arc<PlanSet>) -> Result<Box<dyn Prepared>, ExecuteError> {
        Ok(self.prepare_session(plans)?)
    }

    fn prepare_connected(
        &self,
        plans: Arc<PlanSet>,
        connection: Connection,
    ) -> Result<Box<dyn Prepared>, ExecuteError> {
        let options = Options { connection: Some(connection), ..self.options.clone() };
        Ok(self.prepare_with(plans, &options)?)
    }
}

impl KernelExecutor for Emulator {
    fn kernel_device(&self) -> Arc<dyn KernelDevice> {
        Arc::new(self.device())
    }

    fn prepare_session(&self, plans: Arc<PlanSet>) -> Result<Box<dyn KernelSession>, ExecuteError> {
        self.prepare_with(plans, &self.options)
    }
}

/// A GPU without a speed: every kernel is said to take as long as its bytes take to move.
struct EmulatedTarget {
    tf32: bool,
}

impl Target for EmulatedTarget {
    fn name(&self) -> String {
        "emulated cuda".into()
    }

    fn alignment(&self) -> usize {
        target::ALIGNMENT
    }

    fn numerics(&self) -> Numerics {
        Numerics { tf32: self.tf32, ..target::numerics() }
    }

    fn kernel(&self, query: &KernelQuery<'_>) -> Result<plimsoll_plan::Kernel, Unsupported> {
        if let Some(exchange) = query.exchange_over(Link::default()) {
            return Ok(exchange);
        }
        let call = find(query).ok_or_else(|| query.unsupported(self.name()))?;
        Ok(plimsoll_plan::Kernel {
            workspace: call.workspace,
            in_place: target::in_place(query),
            nanoseconds: 1 + query.op.bytes(&query.inputs, &query.outputs),
        })
    }
}

struct EmulatedDevice {
    tf32: bool,
}

/// A call whose kernels are compiled, or the compiler's words.
struct EmulatedCall {
    call: Call,
    /// One for each launch of a kernel, in order.
    kernels: Result<Vec<Arc<HostKernel>>, String>,
}

impl EmulatedCall {
    fn new(call: Call) -> Self {
        let sources = call.launches.iter().filter_map(|launch| match launch {
            Launch::Kernel(kernel) => Some(&kernel.source),
            Launch::Product(_) => None,
        });
        let kernels = sources.map(|source| kernel(source)).collect();
        Self { call, kernels }
    }
}

impl Device for EmulatedDevice {
    type Call = EmulatedCall;
    type Memory = Arena;

    fn map(&self, bytes: usize) -> Result<Arena, String> {
        Arena::new(bytes).map_err(|e| e.to_string())
    }

    fn find(&self, query: &KernelQuery<'_>) -> Option<EmulatedCall> {
        find(query).map(|call| EmulatedCall::new(call.in_tf32(self.tf32)))
    }

    fn joins<'c>(&self, call: &'c EmulatedCall) -> Option<&'c str> {
        joins(&call.call)
    }

    fn join(&self, calls: &[(&EmulatedCall, [usize; 2])]) -> Option<EmulatedCall> {
        let calls: Vec<_> = calls.iter().map(|&(call, operands)| (&call.call, operands)).collect();
        join(&calls).map(EmulatedCall::new)
    }

    fn workspace_bytes(&self, call: &EmulatedCall) -> usize {
        call.call.workspace
    }

    unsafe fn run(&self, call: &EmulatedCall, operands: &Operands<'_>) -> Result<(), String> {
        let mut kernels = call.kernels.as_ref().map_err(Clone::clone)?.iter();
        let mut fault = Fault::NONE;
        let fault_at = (&raw mut fault).cast();
        let address = |pointer: Pointer| address(pointer, operands, fault_at);
        for launch in &call.call.launches {
            match launch {
                Launch::Kernel(launch) => {
                    let kernel = kernels.next().ok_or("a kernel was not compiled")?;
                    // SAFETY: the caller's promise: the operands are those of the node that the call was found for.
                    unsafe { run_kernel(kernel, launch, &address)? };
                }
                Launch::Product(product) => {
                    let start = |matrix: &Matrix| address(matrix.start);
                    let starts = product::Starts {
                        a: start(&product.a),
                        b: start(&product.b),
                        c: start(&product.c),
                        bias: product.bias.map_or(std::ptr::null_mut(), address).cast_const(),
                    };
                    // SAFETY: as above.
                    unsafe { product::run(product, &starts) };
                }
            }
        }
        call.call.fault.and_then(|f| f.message(fault)).map_or(Ok(()), Err)
    }

    unsafe fn copy(&self, from: *const u8, to: *mut u8, bytes: usize) -> Result<(), String> {
        // SAFETY: the caller's promise; `copy` allows for overlap.
        unsafe { std::ptr::copy(from, to, bytes) };
        Ok(())
    }
}

/// Where a pointer points to.
fn address(pointer: Pointer, operands: &Operands<'_>, fault: *mut u8) -> *mut u8 {
    let start = match pointer.operand {
        Operand::Read(i) => operands.reads[i].cast_mut(),
        Operand::Write(i) => operands.writes[i],
        Operand::Workspace => operands.workspace,
        Operand::Fault => fault,
    };
    start.wrapping_add(pointer.offset)
}

/// # Safety
/// The addresses are valid for what the kernel does.
unsafe fn run_kernel(
    kernel: &HostKernel,
    launch: &Kernel,
    address: &dyn Fn(Pointer) -> *mut u8,
) -> Result<(), String> {
    let mut values: Vec<u64> = (launch.parameters.iter())
        .map(|parameter| match *parameter {
            Parameter::Pointer(pointer) => address(pointer) as u64,
            Parameter::Integer(number) => number as u64,
            // In the first four bytes, wherever a number starts.
            Parameter::Float(number) => {
                let mut bytes = [0; 8];
                bytes[..4].copy_from_slice(&number.to_ne_bytes());
                u64::from_ne_bytes(bytes)
            }
        })
        .collect();
    if launch.table {
        // The kernel takes the whole of its table.
        let count = values.pop().unwrap_or(0);
        values.resize(Kernel::PARAMETER_BYTES / size_of::<u64>(), 0);
        values.push(count);
    }
    let last = values.len().saturating_sub(1);
    let each = if launch.table { vec![0, last] } else { (0..values.len()).collect() };
    let start = values.as_mut_ptr();
    let mut parameters: Vec<*mut c_void> = each.into_iter().map(|at| start.wrapping_add(at).cast()).collect();
    // SAFETY: eight bytes for each parameter, more than all for a table, and the caller's promise.
    unsafe { kernel.run(&mut parameters, launch.blocks, launch.threads) }
}
