//! What is recorded until it is submitted: copies, staged bytes, kernels and their parameters.

use std::sync::Arc;

use super::gpu::{Gpu, Held, Slot};
use super::lock;
use super::pipeline::Pipeline;
use super::storage::{Binding, WgpuStorage};
use crate::Result;

/// Words of parameters that a dispatch may have, beside the pipeline's number.
pub const MAX_PARAMS: usize = 63;

/// Storage buffers that a dispatch may have; adapters may take fewer.
pub const MAX_BINDINGS: usize = 32;

/// Bytes of the uniform binding of each dispatch, and the multiple that its offset must be of on every adapter.
pub(super) const UNIFORM: usize = 256;
/// Dispatches and staged bytes that are submitted without anyone's waiting for them: a submission that grows without
/// end would leave the device idle meanwhile. A model's step has some hundred dispatches.
const MOST_DISPATCHES: usize = 4096;
pub(super) const MOST_STAGED: usize = 8 << 20;
/// Kernels that an error of a submission names.
const NAMED: usize = 4;

/// Something recorded.
#[derive(Debug)]
enum Command {
    /// Bytes between two wgpu buffers; `None` is what was staged for this submission.
    Copy {
        from: Option<wgpu::Buffer>,
        from_start: u64,
        to: wgpu::Buffer,
        to_start: u64,
        len: u64,
    },
    Clear {
        buffer: wgpu::Buffer,
    },
    Dispatch {
        pipeline: Arc<Pipeline>,
        group: wgpu::BindGroup,
        status: Option<wgpu::BindGroup>,
        groups: [u32; 3],
    },
}

/// The status words of a stream.
#[derive(Debug)]
pub(super) struct Status {
    pub(super) buffer: Held,
    group: wgpu::BindGroup,
}

impl Status {
    pub(super) fn new(gpu: &Gpu) -> Result<Self> {
        let buffer = gpu.persistent("status", UNIFORM, wgpu::BufferUsages::STORAGE)?;
        let group = gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some("status"),
            layout: &gpu.layouts.status,
            entries: &[wgpu::BindGroupEntry { binding: 0, resource: buffer.as_entire_binding() }],
        });
        Ok(Self { buffer, group })
    }
}

/// Commands in order, and the bytes and parameters that they read.
#[derive(Debug, Default)]
pub(super) struct Recording {
    commands: Vec<Command>,
    pub(super) staged: Vec<u8>,
    pub(super) params: Vec<u8>,
}

impl Recording {
    pub(super) fn len(&self) -> usize {
        self.commands.len()
    }

    /// Drops the last commands, which read nothing that was staged, and are no kernels.
    pub(super) fn truncate(&mut self, len: usize) {
        self.commands.truncate(len);
    }

    /// Forgets everything; its memory serves the next recording.
    pub(super) fn clear(&mut self) {
        self.commands.clear();
        self.staged.clear();
        self.params.clear();
    }

    /// Whether so many bytes more are to be staged in a submission of their own.
    pub(super) fn is_full_of_bytes(&self, more: usize) -> bool {
        self.staged.len() + more > MOST_STAGED
    }

    /// Whether another kernel belongs into a submission of its own.
    pub(super) fn is_full_of_kernels(&self) -> bool {
        self.params.len() >= MOST_DISPATCHES * UNIFORM
    }

    /// A copy in whole words between two buffers that differ.
    pub(super) fn copy(&mut self, from: (&wgpu::Buffer, u64), to: (&wgpu::Buffer, u64), len: u64) {
        let (from, from_start) = (Some(from.0.clone()), from.1);
        self.commands.push(Command::Copy { from, from_start, to: to.0.clone(), to_start: to.1, len });
    }

    /// An upload to whole words of a buffer.
    pub(super) fn stage(&mut self, bytes: &[u8], to: (&wgpu::Buffer, u64)) {
        let from_start = self.staged.len() as u64;
        self.staged.extend_from_slice(bytes);
        let whole = self.staged.len().next_multiple_of(4);
        self.staged.resize(whole, 0);
        let len = whole as u64 - from_start;
        self.commands.push(Command::Copy { from: None, from_start, to: to.0.clone(), to_start: to.1, len });
    }

    /// Zeros for a stream's status.
    pub(super) fn zero(&mut self, status: &Status) {
        self.commands.push(Command::Clear { buffer: (*status.buffer).clone() });
    }

    /// A kernel, with at most [`MAX_PARAMS`] parameters.
    pub(super) fn dispatch(
        &mut self,
        pipeline: &Arc<Pipeline>,
        group: wgpu::BindGroup,
        params: &[u32],
        groups: [u32; 3],
        status: &Status,
    ) {
        let first = self.params.len();
        self.params.extend_from_slice(&pipeline.number.to_le_bytes());
        self.params.extend(params.iter().flat_map(|word| word.to_le_bytes()));
        self.params.resize(first + UNIFORM, 0);
        let status = pipeline.reports.then(|| status.group.clone());
        self.commands.push(Command::Dispatch { pipeline: pipeline.clone(), group, status, groups });
    }

    /// The commands for the device, which finds staged bytes and parameters where they are given.
    pub(super) fn encode(
        &self,
        device: &wgpu::Device,
        staging: Option<&wgpu::Buffer>,
        params: Option<&wgpu::BindGroup>,
    ) -> wgpu::CommandBuffer {
        let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let mut uniform = 0;
        let mut rest = &self.commands[..];
        while let Some(command) = rest.first() {
            match command {
                Command::Copy { from, from_start, to, to_start, len } => {
                    if let Some(from) = from.as_ref().or(staging) {
                        encoder.copy_buffer_to_buffer(from, *from_start, to, *to_start, *len);
                    }
                    rest = &rest[1..];
                }
                Command::Clear { buffer } => {
                    encoder.clear_buffer(buffer, 0, None);
                    rest = &rest[1..];
                }
                Command::Dispatch { .. } => {
                    let run = rest.iter().take_while(|command| matches!(command, Command::Dispatch { .. })).count();
                    let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
                    for command in &rest[..run] {
                        let Command::Dispatch { pipeline, group, status, groups } = command else { continue };
                        pass.set_pipeline(&pipeline.compiled);
                        pass.set_bind_group(0, group, &[]);
                        if let Some(params) = params {
                            pass.set_bind_group(1, params, &[uniform]);
                        }
                        if let Some(status) = status {
                            pass.set_bind_group(2, status, &[]);
                        }
                        pass.dispatch_workgroups(groups[0], groups[1], groups[2]);
                        uniform += UNIFORM as u32;
                    }
                    rest = &rest[run..];
                }
            }
        }
        encoder.finish()
    }

    /// The first kernels, which is what an error of their submission can name.
    pub(super) fn names(&self) -> String {
        let mut names: Vec<&str> = Vec::new();
        for command in &self.commands {
            if let Command::Dispatch { pipeline, .. } = command
                && !names.contains(&pipeline.name)
            {
                names.push(pipeline.name);
                if names.len() > NAMED {
                    names[NAMED] = "…";
                    break;
                }
            }
        }
        if names.is_empty() { "copies".into() } else { names.join(", ") }
    }
}

/// The bind group of a kernel's buffers, made where it was not before, and whether it was.
pub(super) fn bind(gpu: &Arc<Gpu>, pipeline: &Pipeline, bindings: &[Binding<'_>]) -> Result<(wgpu::BindGroup, bool)> {
    let largest = gpu.limits.max_storage_buffer_binding_size;
    let mut slots: [Slot; MAX_BINDINGS] = Default::default();
    let too_many = || gpu.failed(pipeline.name, format!("more than {MAX_BINDINGS} buffers"));
    let slots = slots.get_mut(..bindings.len()).ok_or_else(too_many)?;
    for (slot, binding) in slots.iter_mut().zip(bindings) {
        let storage = WgpuStorage::of(binding.buffer, gpu)?.id;
        if binding.len as u64 > largest {
            let reason = format!("an operand of {} bytes; the device binds {largest} at once", binding.len);
            return Err(gpu.failed(pipeline.name, reason));
        }
        *slot = (storage, binding.start as u64, binding.len as u64);
    }
    if let Some(group) = lock(&gpu.groups).get(slots) {
        return Ok((group, false));
    }
    let mut entries = Vec::with_capacity(bindings.len());
    for (number, (binding, slot)) in (0..).zip(bindings.iter().zip(&*slots)) {
        entries.push(wgpu::BindGroupEntry {
            binding: number,
            resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                buffer: &WgpuStorage::of(binding.buffer, gpu)?.buffer,
                offset: slot.1,
                size: wgpu::BufferSize::new(slot.2),
            }),
        });
    }
    let group = gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: Some(pipeline.name),
        layout: &gpu.storage_layout(bindings.len()),
        entries: &entries,
    });
    lock(&gpu.groups).insert(slots, group.clone());
    Ok((group, true))
}
