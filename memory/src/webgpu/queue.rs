//! The recording that all streams of a device share, and its submission.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use super::cache::Cache;
use super::groups::{Groups, Slot};
use super::one_line;
use super::pipeline::{Pipeline, Pipelines};
use super::storage::{Binding, WgpuStorage};
use crate::{DeviceId, Error, Result};

/// Words of parameters that a dispatch may have, beside the pipeline's number.
pub const MAX_PARAMS: usize = 63;

/// Storage buffers that a dispatch may have; adapters may take fewer.
pub const MAX_BINDINGS: usize = 32;

/// Bytes of the uniform binding of each dispatch, and the multiple that its offset must be of on every adapter.
const UNIFORM: usize = 256;
/// Dispatches and staged bytes that are submitted without anyone's waiting for them: a submission that grows without
/// end would leave the device idle meanwhile. A model's step has some hundred dispatches.
const MOST_DISPATCHES: usize = 4096;
pub(super) const MOST_STAGED: usize = 8 << 20;
/// Submissions that the device may lag behind while bytes are staged: wgpu holds a copy of each until it is done.
const MOST_IN_FLIGHT: usize = 4;
/// Bytes that are read back at once.
pub(super) const READ_PIECE: usize = 16 << 20;
/// Bytes of the status words, and where the bytes begin that are read back with them.
const STATUS_BYTES: u64 = 8;
const READ_START: u64 = 16;
/// Kernels that an error of a submission names.
const NAMED: usize = 4;

/// What a device did so far, and what it holds for itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Command buffers given to the device.
    pub submissions: usize,
    /// Kernels run.
    pub dispatches: usize,
    /// Bind groups made.
    pub bind_groups: usize,
    /// Pipelines compiled.
    pub pipelines: usize,
    /// Bytes for staging, parameters, reading back and status, which are kept and grow as they must.
    pub persistent_bytes: usize,
}

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

/// Layouts that pipelines and bind groups share.
#[derive(Debug)]
pub(super) struct Layouts {
    pub(super) params: wgpu::BindGroupLayout,
    pub(super) status: wgpu::BindGroupLayout,
}

/// The status words of a stream.
#[derive(Debug)]
pub(super) struct Status {
    pub(super) buffer: wgpu::Buffer,
    pub(super) group: wgpu::BindGroup,
}

#[derive(Debug, Default)]
struct State {
    commands: Vec<Command>,
    staged: Vec<u8>,
    params: Vec<u8>,
    staging: Option<wgpu::Buffer>,
    /// The parameters of a submission, and its bind group.
    uniforms: Option<(wgpu::Buffer, wgpu::BindGroup)>,
    reading: Option<wgpu::Buffer>,
    groups: Groups,
    storage_layouts: Vec<wgpu::BindGroupLayout>,
    in_flight: VecDeque<wgpu::SubmissionIndex>,
    counters: Counters,
}

/// A device of wgpu with its one queue.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) id: DeviceId,
    pub(super) device: wgpu::Device,
    queue: wgpu::Queue,
    pub(super) limits: wgpu::Limits,
    /// Bytes of the device's memory.
    pub(super) memory: usize,
    pub(super) allocated: AtomicUsize,
    pub(super) next_storage: AtomicU64,
    pub(super) layouts: Layouts,
    pub(super) cache: Option<Cache>,
    pub(super) pipelines: Mutex<Pipelines>,
    state: Mutex<State>,
    /// Submissions made, and how many of them are done.
    submitted: AtomicU64,
    completed: Arc<AtomicU64>,
    /// What the device complained of, with nobody asking.
    faults: Arc<Mutex<Vec<String>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

fn layout(device: &wgpu::Device, entries: impl IntoIterator<Item = wgpu::BufferBindingType>) -> wgpu::BindGroupLayout {
    let entry = |(binding, ty)| wgpu::BindGroupLayoutEntry {
        binding,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer {
            ty,
            has_dynamic_offset: ty == wgpu::BufferBindingType::Uniform,
            min_binding_size: None,
        },
        count: None,
    };
    let entries: Vec<_> = (0..).zip(entries).map(entry).collect();
    device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries })
}

const STORAGE: wgpu::BufferBindingType = wgpu::BufferBindingType::Storage { read_only: false };

impl Queue {
    pub(super) fn new(
        id: DeviceId,
        device: wgpu::Device,
        queue: wgpu::Queue,
        memory: usize,
        cache: Option<Cache>,
    ) -> Self {
        let faults = Arc::new(Mutex::new(Vec::new()));
        let (uncaptured, lost) = (faults.clone(), faults.clone());
        device.on_uncaptured_error(Arc::new(move |error| lock(&uncaptured).push(one_line(error))));
        device.set_device_lost_callback(move |reason, message| {
            // A device that is dropped in good order says so too.
            if reason != wgpu::DeviceLostReason::Destroyed {
                lock(&lost).push(format!("the device was lost: {}", one_line(message)));
            }
        });
        let layouts =
            Layouts { params: layout(&device, [wgpu::BufferBindingType::Uniform]), status: layout(&device, [STORAGE]) };
        Self {
            id,
            limits: device.limits(),
            device,
            queue,
            memory,
            allocated: AtomicUsize::new(0),
            next_storage: AtomicU64::new(0),
            layouts,
            cache,
            pipelines: Mutex::default(),
            state: Mutex::default(),
            submitted: AtomicU64::new(0),
            completed: Arc::default(),
            faults,
        }
    }

    /// The layout of a group of so many storage buffers.
    pub(super) fn storage_layout(&self, buffers: usize) -> wgpu::BindGroupLayout {
        lock(&self.state).storage_layout(&self.device, buffers)
    }

    /// A buffer that can be copied from and to; `None` where there is no memory for it.
    pub(super) fn buffer(&self, label: &str, size: usize, usage: wgpu::BufferUsages) -> Option<wgpu::Buffer> {
        // Read back is all that a buffer may be which the host reads.
        let copies = if usage == wgpu::BufferUsages::MAP_READ {
            wgpu::BufferUsages::COPY_DST
        } else {
            wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST
        };
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let buffer = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some(label),
            size: size as u64,
            usage: usage | copies,
            mapped_at_creation: false,
        });
        pollster::block_on(scope.pop()).is_none().then_some(buffer)
    }

    fn persistent(
        &self,
        state: &mut State,
        label: &str,
        size: usize,
        usage: wgpu::BufferUsages,
    ) -> Result<wgpu::Buffer> {
        let buffer = self.buffer(label, size, usage).ok_or_else(|| self.failed(label, "out of memory"))?;
        state.counters.persistent_bytes += size;
        Ok(buffer)
    }

    pub(super) fn failed(&self, operation: impl Into<String>, reason: impl Into<String>) -> Error {
        Error::Device { device: self.id, operation: operation.into(), reason: reason.into() }
    }

    pub(super) fn status(&self) -> Result<Status> {
        let buffer = self.persistent(&mut lock(&self.state), "status", UNIFORM, wgpu::BufferUsages::STORAGE)?;
        let group = self.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some("status"),
            layout: &self.layouts.status,
            entries: &[wgpu::BindGroupEntry { binding: 0, resource: buffer.as_entire_binding() }],
        });
        Ok(Status { buffer, group })
    }

    pub(super) fn counters(&self) -> Counters {
        Counters { pipelines: lock(&self.pipelines).count(), ..lock(&self.state).counters }
    }

    /// Drops the bind groups of a storage.
    pub(super) fn forget(&self, storage: u64) {
        lock(&self.state).groups.forget(storage);
    }

    /// Records a copy between storages, in whole words, from the first to the second where they differ.
    pub(super) fn copy(&self, from: (&wgpu::Buffer, u64), to: (&wgpu::Buffer, u64), len: u64) {
        let (from, from_start) = (Some(from.0.clone()), from.1);
        let command = Command::Copy { from, from_start, to: to.0.clone(), to_start: to.1, len };
        lock(&self.state).commands.push(command);
    }

    /// Records an upload of at most [`MOST_STAGED`] bytes to whole words of a storage.
    pub(super) fn stage(&self, bytes: &[u8], to: (&wgpu::Buffer, u64)) -> Result<()> {
        let mut state = lock(&self.state);
        let from_start = state.staged.len() as u64;
        state.staged.extend_from_slice(bytes);
        let whole = state.staged.len().next_multiple_of(4);
        state.staged.resize(whole, 0);
        let len = whole as u64 - from_start;
        let command = Command::Copy { from: None, from_start, to: to.0.clone(), to_start: to.1, len };
        state.commands.push(command);
        if state.staged.len() < MOST_STAGED {
            return Ok(());
        }
        self.submit(&mut state)?;
        while state.in_flight.len() > MOST_IN_FLIGHT {
            self.wait_for(state.in_flight.pop_front())?;
        }
        Ok(())
    }

    /// Records a kernel.
    pub(super) fn dispatch(
        self: &Arc<Self>,
        pipeline: &Arc<Pipeline>,
        bindings: &[Binding<'_>],
        params: &[u32],
        groups: [u32; 3],
        status: &Status,
    ) -> Result<()> {
        let invalid = |reason: String| self.failed(pipeline.name, reason);
        if bindings.len() != pipeline.bindings || params.len() > MAX_PARAMS {
            let (found, words) = (bindings.len(), params.len());
            return Err(invalid(format!("{found} buffers and {words} parameters for {}", pipeline.bindings)));
        }
        let most_groups = self.limits.max_compute_workgroups_per_dimension;
        if groups.iter().any(|&n| n > most_groups) {
            return Err(invalid(format!("{groups:?} workgroups; the device takes {most_groups} in a dimension")));
        }
        if groups.contains(&0) {
            return Ok(());
        }
        let mut state = lock(&self.state);
        let group = self.bind(&mut state, pipeline, bindings)?;
        let first = state.params.len();
        state.params.extend_from_slice(&pipeline.number.to_le_bytes());
        state.params.extend(params.iter().flat_map(|word| word.to_le_bytes()));
        state.params.resize(first + UNIFORM, 0);
        let status = pipeline.reports.then(|| status.group.clone());
        state.commands.push(Command::Dispatch { pipeline: pipeline.clone(), group, status, groups });
        state.counters.dispatches += 1;
        if state.params.len() >= MOST_DISPATCHES * UNIFORM {
            self.submit(&mut state)?;
        }
        Ok(())
    }

    fn bind(
        self: &Arc<Self>,
        state: &mut State,
        pipeline: &Pipeline,
        bindings: &[Binding<'_>],
    ) -> Result<wgpu::BindGroup> {
        let largest = self.limits.max_storage_buffer_binding_size;
        let mut slots: [Slot; MAX_BINDINGS] = Default::default();
        let too_many = || self.failed(pipeline.name, format!("more than {MAX_BINDINGS} buffers"));
        let slots = slots.get_mut(..bindings.len()).ok_or_else(too_many)?;
        for (slot, binding) in slots.iter_mut().zip(bindings) {
            let storage = WgpuStorage::of(binding.buffer, self)?.id;
            if binding.len as u64 > largest {
                let reason = format!("an operand of {} bytes; the device binds {largest} at once", binding.len);
                return Err(self.failed(pipeline.name, reason));
            }
            *slot = (storage, binding.start as u64, binding.len as u64);
        }
        if let Some(group) = state.groups.get(slots) {
            return Ok(group);
        }
        let mut entries = Vec::with_capacity(bindings.len());
        for (number, (binding, slot)) in (0..).zip(bindings.iter().zip(&*slots)) {
            entries.push(wgpu::BindGroupEntry {
                binding: number,
                resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                    buffer: &WgpuStorage::of(binding.buffer, self)?.buffer,
                    offset: slot.1,
                    size: wgpu::BufferSize::new(slot.2),
                }),
            });
        }
        let group = self.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(pipeline.name),
            layout: &state.storage_layout(&self.device, bindings.len()),
            entries: &entries,
        });
        state.groups.insert(slots, group.clone());
        state.counters.bind_groups += 1;
        Ok(group)
    }

    /// Records that a stream's status is zeroed.
    pub(super) fn clear(&self, status: &Status) {
        lock(&self.state).commands.push(Command::Clear { buffer: status.buffer.clone() });
    }

    /// The number of the submission that holds everything recorded so far.
    pub(super) fn ticket(&self) -> u64 {
        let state = lock(&self.state);
        self.submitted.load(Ordering::Acquire) + u64::from(!state.commands.is_empty())
    }

    /// Whether a submission is done.
    pub(super) fn is_done(&self, ticket: u64) -> bool {
        if self.completed.load(Ordering::Acquire) < ticket {
            // A lost device is no longer at work; who synchronises hears of it.
            let _ = self.device.poll(wgpu::PollType::Poll);
        }
        self.completed.load(Ordering::Acquire) >= ticket
    }

    /// Submits what is recorded if it belongs to a submission, and waits for that.
    pub(super) fn reach(&self, ticket: u64) -> Result<()> {
        let mut state = lock(&self.state);
        if self.submitted.load(Ordering::Acquire) < ticket {
            self.submit(&mut state)?;
        }
        drop(state);
        if !self.is_done(ticket) {
            self.wait_for(None)?;
        }
        Ok(())
    }

    /// Submits what is recorded and waits for it, reading bytes of a storage back from byte `start` on, and the status
    /// words of a stream where it is given.
    pub(super) fn finish(
        &self,
        from: Option<(&wgpu::Buffer, u64)>,
        into: &mut [u8],
        status: Option<&Status>,
    ) -> Result<[u32; 2]> {
        let mut state = lock(&self.state);
        if into.is_empty() && status.is_none() {
            let names = self.submit(&mut state)?;
            self.wait_for(None)?;
            return self.check(&names).map(|()| [0; 2]);
        }
        // A device reads whole words: those around the bytes that are wanted.
        let head = from.map_or(0, |(_, start)| start % 4);
        let len = (head + into.len() as u64).next_multiple_of(4);
        let end = (READ_START + len).next_multiple_of(8);
        let reading = match state.reading.take().filter(|buffer| buffer.size() >= end) {
            Some(buffer) => buffer,
            None => {
                let size = (end as usize).next_power_of_two();
                self.persistent(&mut state, "reading back", size, wgpu::BufferUsages::MAP_READ)?
            }
        };
        let mut read = |from: &wgpu::Buffer, from_start, to_start, len| {
            let (from, to) = (Some(from.clone()), reading.clone());
            state.commands.push(Command::Copy { from, from_start, to, to_start, len });
        };
        if let Some((from, start)) = from {
            read(from, start - head, READ_START, len);
        }
        if let Some(status) = status {
            read(&status.buffer, 0, 0, STATUS_BYTES);
        }
        let names = self.submit(&mut state)?;
        let mapped = Arc::new(Mutex::new(Ok(())));
        let result = mapped.clone();
        let slice = reading.slice(..end);
        slice.map_async(wgpu::MapMode::Read, move |outcome| *lock(&result) = outcome);
        self.wait_for(None)?;
        self.check(&names)?;
        let unread = |error: String| self.failed("reading back", error);
        lock(&mapped).clone().map_err(|error| unread(one_line(error)))?;
        let bytes = slice.get_mapped_range().map_err(|error| unread(one_line(error)))?;
        let words = match status {
            Some(_) => bytemuck::pod_read_unaligned(&bytes[..STATUS_BYTES as usize]),
            None => [0; 2],
        };
        let first = (READ_START + head) as usize;
        into.copy_from_slice(&bytes[first..first + into.len()]);
        drop(bytes);
        reading.unmap();
        state.reading = Some(reading);
        Ok(words)
    }

    /// Encodes and submits what is recorded. Returns the kernels of it, for errors.
    fn submit(&self, state: &mut State) -> Result<String> {
        let commands = std::mem::take(&mut state.commands);
        if commands.is_empty() {
            return Ok("device".into());
        }
        // Written before anything of this submission runs, and after all of the last.
        self.refill(state)?;
        let mut encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let mut uniform = 0;
        let mut rest = &commands[..];
        while let Some(command) = rest.first() {
            match command {
                Command::Copy { from, from_start, to, to_start, len } => {
                    if let Some(from) = from.as_ref().or(state.staging.as_ref()) {
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
                        if let Some((_, params)) = &state.uniforms {
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
        let index = self.queue.submit([encoder.finish()]);
        let (ticket, completed) = (self.submitted.fetch_add(1, Ordering::AcqRel) + 1, self.completed.clone());
        self.queue.on_submitted_work_done(move || {
            completed.fetch_max(ticket, Ordering::AcqRel);
        });
        state.in_flight.push_back(index);
        while state.in_flight.len() > MOST_IN_FLIGHT + 1 {
            state.in_flight.pop_front();
        }
        state.counters.submissions += 1;
        state.staged.clear();
        state.params.clear();
        let names = named(&commands);
        // Its memory serves the next submission.
        state.commands = commands;
        state.commands.clear();
        Ok(names)
    }

    /// Puts staged bytes and parameters where the device reads them.
    fn refill(&self, state: &mut State) -> Result<()> {
        let grown = |needed: usize| needed.next_power_of_two().max(64 << 10);
        if !state.staged.is_empty() {
            let large = |buffer: &wgpu::Buffer| buffer.size() as usize >= state.staged.len();
            if !state.staging.as_ref().is_some_and(large) {
                let size = grown(state.staged.len());
                state.staging = Some(self.persistent(state, "staging", size, wgpu::BufferUsages::empty())?);
            }
            if let Some(staging) = &state.staging {
                self.queue.write_buffer(staging, 0, &state.staged);
            }
        }
        if !state.params.is_empty() {
            let large = |(buffer, _): &(wgpu::Buffer, wgpu::BindGroup)| buffer.size() as usize >= state.params.len();
            if !state.uniforms.as_ref().is_some_and(large) {
                let size = grown(state.params.len());
                let buffer = self.persistent(state, "parameters", size, wgpu::BufferUsages::UNIFORM)?;
                let binding =
                    wgpu::BufferBinding { buffer: &buffer, offset: 0, size: wgpu::BufferSize::new(UNIFORM as u64) };
                let group = self.device.create_bind_group(&wgpu::BindGroupDescriptor {
                    label: Some("parameters"),
                    layout: &self.layouts.params,
                    entries: &[wgpu::BindGroupEntry { binding: 0, resource: wgpu::BindingResource::Buffer(binding) }],
                });
                state.uniforms = Some((buffer, group));
            }
            if let Some((buffer, _)) = &state.uniforms {
                self.queue.write_buffer(buffer, 0, &state.params);
            }
        }
        Ok(())
    }

    /// Waits for a submission, or for the last.
    fn wait_for(&self, submission_index: Option<wgpu::SubmissionIndex>) -> Result<()> {
        let outcome = self.device.poll(wgpu::PollType::Wait { submission_index, timeout: None });
        outcome.map(drop).map_err(|error| self.failed("waiting", one_line(error)))
    }

    /// The first thing that the device complained of since the last check.
    fn check(&self, names: &str) -> Result<()> {
        match std::mem::take(&mut *lock(&self.faults)).into_iter().next() {
            Some(reason) => Err(self.failed(names, reason)),
            None => Ok(()),
        }
    }
}

impl State {
    fn storage_layout(&mut self, device: &wgpu::Device, buffers: usize) -> wgpu::BindGroupLayout {
        while self.storage_layouts.len() <= buffers {
            let entries = std::iter::repeat_n(STORAGE, self.storage_layouts.len());
            self.storage_layouts.push(layout(device, entries));
        }
        self.storage_layouts[buffers].clone()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if let Some(cache) = self.cache.as_ref().filter(|_| lock(&self.pipelines).count() > 0) {
            cache.save();
        }
    }
}

/// The first kernels of a submission, which is what an error of it can name.
fn named(commands: &[Command]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for command in commands {
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
