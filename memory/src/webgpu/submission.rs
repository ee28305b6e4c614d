//! The one recording of a device, its submission, and what comes back: bytes, status words, faults.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::gpu::{Gpu, Held};
use super::pipeline::Pipeline;
use super::recording::{MAX_PARAMS, Recording, Status, UNIFORM, bind};
use super::storage::Binding;
use super::{lock, one_line};
use crate::Result;

/// Submissions that the device may lag behind while bytes are staged: wgpu holds a copy of each until it is done.
const MOST_IN_FLIGHT: usize = 4;
/// Bytes that are read back at once.
pub(super) const READ_PIECE: usize = 16 << 20;
/// Bytes of the status words, and where the bytes begin that are read back with them.
const STATUS_BYTES: u64 = 8;
const READ_START: u64 = 16;

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
    /// How many of them were compiled with the driver's cache.
    pub cached_pipelines: usize,
    /// Bytes that the driver's cache began with: what an earlier device left; 0 where nothing was kept.
    pub cache_bytes: usize,
    /// Bytes that were asked to be brought to the host.
    pub downloaded_bytes: usize,
    /// Bytes held now for staging, parameters, reading back and status, which are kept and grow as they must.
    pub persistent_bytes: usize,
}

/// The recording, and the buffers that serve its submission.
#[derive(Debug, Default)]
struct State {
    recording: Recording,
    staging: Option<Held>,
    /// The parameters of a submission, and its bind group.
    uniforms: Option<(Held, wgpu::BindGroup)>,
    reading: Option<Held>,
    in_flight: VecDeque<wgpu::SubmissionIndex>,
    counters: Counters,
}

/// The one queue that all streams of a device share.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) gpu: Arc<Gpu>,
    state: Mutex<State>,
    /// Submissions made, and how many of them are done.
    submitted: AtomicU64,
    completed: Arc<AtomicU64>,
    /// What the device complained of, with nobody asking.
    faults: Arc<Mutex<Vec<String>>>,
}

impl Queue {
    pub(super) fn new(gpu: Arc<Gpu>) -> Self {
        let faults = Arc::new(Mutex::new(Vec::new()));
        let (uncaptured, lost) = (faults.clone(), faults.clone());
        gpu.device.on_uncaptured_error(Arc::new(move |error| lock(&uncaptured).push(one_line(error))));
        gpu.device.set_device_lost_callback(move |reason, message| {
            // A device that is dropped in good order says so too.
            if reason != wgpu::DeviceLostReason::Destroyed {
                lock(&lost).push(format!("the device was lost: {}", one_line(message)));
            }
        });
        Self { gpu, state: Mutex::default(), submitted: AtomicU64::new(0), completed: Arc::default(), faults }
    }

    /// What was counted, but for what concerns pipelines.
    pub(super) fn counters(&self) -> Counters {
        Counters { persistent_bytes: self.gpu.persistent_bytes(), ..lock(&self.state).counters }
    }

    /// Records a copy between storages, in whole words, from the first to the second where they differ.
    pub(super) fn copy(&self, from: (&wgpu::Buffer, u64), to: (&wgpu::Buffer, u64), len: u64) {
        lock(&self.state).recording.copy(from, to, len);
    }

    /// Records an upload of at most [`super::recording::MOST_STAGED`] bytes to whole words of a storage.
    pub(super) fn stage(&self, bytes: &[u8], to: (&wgpu::Buffer, u64)) -> Result<()> {
        let mut state = lock(&self.state);
        // Before anything is recorded, so that an upload that fails has not been.
        if state.recording.is_full_of_bytes(bytes.len()) {
            self.submit(&mut state)?;
            while state.in_flight.len() > MOST_IN_FLIGHT {
                self.wait_for(state.in_flight.pop_front())?;
            }
        }
        state.recording.stage(bytes, to);
        Ok(())
    }

    /// Records a kernel.
    pub(super) fn dispatch(
        &self,
        pipeline: &Arc<Pipeline>,
        bindings: &[Binding<'_>],
        params: &[u32],
        groups: [u32; 3],
        status: &Status,
    ) -> Result<()> {
        let invalid = |reason: String| self.gpu.failed(pipeline.name, reason);
        if bindings.len() != pipeline.bindings || params.len() > MAX_PARAMS {
            let (found, words) = (bindings.len(), params.len());
            return Err(invalid(format!("{found} buffers and {words} parameters for {}", pipeline.bindings)));
        }
        let most_groups = self.gpu.limits.max_compute_workgroups_per_dimension;
        if groups.iter().any(|&n| n > most_groups) {
            return Err(invalid(format!("{groups:?} workgroups; the device takes {most_groups} in a dimension")));
        }
        if groups.contains(&0) {
            return Ok(());
        }
        let mut state = lock(&self.state);
        // Before anything is recorded: a kernel that was refused must not run all the same.
        if state.recording.is_full_of_kernels() {
            self.submit(&mut state)?;
        }
        let (group, is_new) = bind(&self.gpu, pipeline, bindings)?;
        state.recording.dispatch(pipeline, group, params, groups, status);
        state.counters.dispatches += 1;
        state.counters.bind_groups += usize::from(is_new);
        Ok(())
    }

    /// Records that a stream's status is zeroed.
    pub(super) fn zero(&self, status: &Status) {
        lock(&self.state).recording.zero(status);
    }

    /// The number of the submission that holds everything recorded so far.
    pub(super) fn ticket(&self) -> u64 {
        let state = lock(&self.state);
        self.submitted.load(Ordering::Acquire) + u64::from(state.recording.len() > 0)
    }

    /// Whether a submission is done.
    pub(super) fn is_done(&self, ticket: u64) -> bool {
        if self.completed.load(Ordering::Acquire) < ticket {
            // A lost device is no longer at work; who synchronises hears of it.
            let _ = self.gpu.device.poll(wgpu::PollType::Poll);
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
        state.counters.downloaded_bytes += into.len();
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
                self.gpu.persistent("reading back", size, wgpu::BufferUsages::MAP_READ)?
            }
        };
        let recorded = state.recording.len();
        if let Some((from, start)) = from {
            state.recording.copy((from, start - head), (&reading, READ_START), len);
        }
        if let Some(status) = status {
            state.recording.copy((&status.buffer, 0), (&reading, 0), STATUS_BYTES);
        }
        let names = match self.submit(&mut state) {
            Ok(names) => names,
            Err(error) => {
                // What is recorded stays so, but nobody will read this.
                state.recording.truncate(recorded);
                state.reading = Some(reading);
                return Err(error);
            }
        };
        let mapped = Arc::new(Mutex::new(Ok(())));
        let result = mapped.clone();
        let slice = reading.slice(..end);
        slice.map_async(wgpu::MapMode::Read, move |outcome| *lock(&result) = outcome);
        self.wait_for(None)?;
        self.check(&names)?;
        let unread = |error: String| self.gpu.failed("reading back", error);
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

    /// Encodes and submits what is recorded. Returns the kernels of it, for errors. Where there is no memory for that,
    /// everything stays recorded for the next attempt.
    fn submit(&self, state: &mut State) -> Result<String> {
        if state.recording.len() == 0 {
            return Ok("device".into());
        }
        // Written before anything of this submission runs, and after all of the last.
        self.refill(state)?;
        let params = state.uniforms.as_ref().map(|(_, group)| group);
        let commands = state.recording.encode(&self.gpu.device, state.staging.as_deref(), params);
        let index = self.gpu.queue.submit([commands]);
        let (ticket, completed) = (self.submitted.fetch_add(1, Ordering::AcqRel) + 1, self.completed.clone());
        self.gpu.queue.on_submitted_work_done(move || {
            completed.fetch_max(ticket, Ordering::AcqRel);
        });
        state.in_flight.push_back(index);
        while state.in_flight.len() > MOST_IN_FLIGHT + 1 {
            state.in_flight.pop_front();
        }
        state.counters.submissions += 1;
        let names = state.recording.names();
        state.recording.clear();
        Ok(names)
    }

    /// Puts staged bytes and parameters where the device reads them.
    fn refill(&self, state: &mut State) -> Result<()> {
        let Gpu { device, queue, layouts, .. } = &*self.gpu;
        let Recording { staged, params, .. } = &state.recording;
        let grown = |needed: usize| needed.next_power_of_two().max(64 << 10);
        if !staged.is_empty() {
            let large = |buffer: &Held| buffer.size() as usize >= staged.len();
            if !state.staging.as_ref().is_some_and(large) {
                let size = grown(staged.len());
                state.staging = Some(self.gpu.persistent("staging", size, wgpu::BufferUsages::empty())?);
            }
            if let Some(staging) = &state.staging {
                queue.write_buffer(staging, 0, staged);
            }
        }
        if !params.is_empty() {
            let large = |(buffer, _): &(Held, wgpu::BindGroup)| buffer.size() as usize >= params.len();
            if !state.uniforms.as_ref().is_some_and(large) {
                let buffer = self.gpu.persistent("parameters", grown(params.len()), wgpu::BufferUsages::UNIFORM)?;
                let binding =
                    wgpu::BufferBinding { buffer: &buffer, offset: 0, size: wgpu::BufferSize::new(UNIFORM as u64) };
                let group = device.create_bind_group(&wgpu::BindGroupDescriptor {
                    label: Some("parameters"),
                    layout: &layouts.params,
                    entries: &[wgpu::BindGroupEntry { binding: 0, resource: wgpu::BindingResource::Buffer(binding) }],
                });
                state.uniforms = Some((buffer, group));
            }
            if let Some((buffer, _)) = &state.uniforms {
                queue.write_buffer(buffer, 0, params);
            }
        }
        Ok(())
    }

    /// Waits for a submission, or for the last.
    fn wait_for(&self, submission_index: Option<wgpu::SubmissionIndex>) -> Result<()> {
        let outcome = self.gpu.device.poll(wgpu::PollType::Wait { submission_index, timeout: None });
        outcome.map(drop).map_err(|error| self.gpu.failed("waiting", one_line(error)))
    }

    /// The first thing that the device complained of since the last check.
    fn check(&self, names: &str) -> Result<()> {
        match std::mem::take(&mut *lock(&self.faults)).into_iter().next() {
            Some(reason) => Err(self.gpu.failed(names, reason)),
            None => Ok(()),
        }
    }
}
