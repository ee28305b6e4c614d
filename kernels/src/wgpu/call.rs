//! A call of a kernel: operands, options and parameters, and from them the pipeline's key and text.

use sinew_memory::webgpu::{Binding, MAX_BINDINGS, MAX_PARAMS, WgpuStream};
use sinew_memory::{Accelerator, Device};
use sinew_tensor::{DType, View};

use super::division::{Dimension, Division, Limits, MOST_DIMENSIONS};
use super::interface::{Interface, MOST_OPERANDS, Name, Operand, Steps};
use super::part::Part;
use super::text;
use crate::operator::{Launch, refuse};
use crate::strided::Walk;
use crate::{Error, Result};

/// Workgroups of a row of a grid that is counted in one dimension: every adapter takes as many.
const GRID: usize = 1 << 15;

/// A call of a kernel in WGSL: see the [module](super).
pub(crate) struct Call<'a> {
    stream: &'a WgpuStream,
    /// What the device offers, which is the same for all calls that share its pipelines.
    offers: &'a Accelerator,
    name: &'static str,
    interface: Interface,
    /// What of each operand is bound, and the parameter that says where it begins.
    parts: Few<Option<(Part<'a>, usize)>, MOST_OPERANDS>,
    bindings: Few<Option<Binding<'a>>, MAX_BINDINGS>,
    dimensions: Few<Dimension, MOST_DIMENSIONS>,
    /// The parameter that counts through the dimensions of a walk.
    count_at: Option<usize>,
    params: Few<u32, MAX_PARAMS>,
}

/// How an operand is bound.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Whole,
    /// What a dispatch sees of it.
    Part,
    /// All of it, as several bindings.
    Windows,
}

impl<'a> Call<'a> {
    /// A call of the kernel of a name, which errors and the pipeline's key have.
    ///
    /// # Errors
    /// A stream of another device.
    pub(crate) fn new(launch: &Launch<'a>, name: &'static str, body: &'static str) -> Result<Self> {
        let stream = launch.stream();
        let stream = WgpuStream::of(stream).ok_or_else(|| Error::WrongDevice {
            kernel: name,
            expected: "wgpu",
            found: stream.device().id().to_string(),
        })?;
        let none = Dimension { size: 0, size_at: 0, first_at: None, is_counted: false, strides: [0; MOST_OPERANDS] };
        let offers = stream.wgpu().hardware().accelerator.as_ref();
        let mut call = Self {
            stream,
            offers: offers.ok_or_else(|| refuse(name, "a device that says nothing of what it offers"))?,
            name,
            interface: Interface::new(body),
            parts: Few::new(None),
            bindings: Few::new(None),
            dimensions: Few::new(none),
            count_at: None,
            params: Few::new(0),
        };
        // Workgroups of a row of the grid, which a dispatch fills in.
        call.push(Name::Plain("groups"), 0)?;
        Ok(call)
    }

    /// A constant of the text: `const NAME: u32`.
    pub(crate) fn option(&mut self, name: &'static str, value: u32) -> Result<()> {
        self.interface.options.push(self.name, (name, value))
    }

    /// An operand that is read.
    pub(crate) fn read(&mut self, name: &'static str, view: &View<'a>) -> Result<()> {
        self.part(name, Part::read(view))
    }

    /// An operand that is written, and may be read.
    pub(crate) fn write(&mut self, name: &'static str, view: &View<'a>) -> Result<()> {
        self.part(name, Part::write(view))
    }

    /// An operand that may be absent, and is read.
    pub(crate) fn optional(&mut self, name: &'static str, view: Option<&View<'a>>) -> Result<()> {
        match view {
            Some(view) => self.read(name, view),
            None => {
                self.parts.push(self.name, None)?;
                self.interface.operands.push(self.name, Operand { name, ..Operand::ABSENT })
            }
        }
    }

    /// An operand that may be absent, and is written.
    pub(crate) fn optional_write(&mut self, name: &'static str, view: Option<&View<'a>>) -> Result<()> {
        match view {
            Some(view) => self.write(name, view),
            None => self.optional(name, None),
        }
    }

    /// So many scratch bytes as words: `load_x(i)` is an f32.
    pub(crate) fn workspace(&mut self, name: &'static str, launch: &Launch<'a>, bytes: usize) -> Result<()> {
        let buffer = launch.workspace(bytes)?;
        let dtype = DType::F32;
        self.part(name, Part { buffer, dtype, offset: 0, end: bytes / dtype.size(), written: true, quads: false })
    }

    /// An operand, as its [`Part`] says.
    pub(crate) fn part(&mut self, name: &'static str, part: Part<'a>) -> Result<()> {
        let Part { dtype, written, quads, .. } = part;
        self.parts.push(self.name, Some((part, self.params.len())))?;
        self.interface
            .operands
            .push(self.name, Operand { name, dtype: Some(dtype), written, quads, ..Operand::ABSENT })?;
        self.push(Name::Base(name), 0)
    }

    fn push(&mut self, name: Name, value: usize) -> Result<()> {
        self.interface.params.push(self.name, name)?;
        self.params.push(self.name, 0)?;
        self.set(self.params.len() - 1, value)
    }

    fn set(&mut self, at: usize, value: usize) -> Result<()> {
        let word = u32::try_from(value).map_err(|_| refuse(self.name, format!("{value} is beyond 32-bit indices")))?;
        self.params[at] = word;
        Ok(())
    }

    /// A parameter, `p.name` in the text.
    pub(crate) fn param(&mut self, name: &'static str, value: usize) -> Result<()> {
        self.push(Name::Plain(name), value)
    }

    /// A parameter that is the bits of an f32.
    pub(crate) fn param_f32(&mut self, name: &'static str, value: f32) -> Result<()> {
        self.push(Name::Plain(name), value.to_bits() as usize)
    }

    /// A dimension that several dispatches may share, where an operand is larger than a binding. `p.size` is how many
    /// of its indices a dispatch has and `p.first`, where that is named, which is the first; an operand begins at that
    /// one's, and the strides say how far it steps from each to the next.
    pub(crate) fn dimension(
        &mut self,
        (name, size): (&'static str, usize),
        first: Option<&'static str>,
        strides: &[(&'static str, usize)],
    ) -> Result<()> {
        let size_at = self.params.len();
        self.push(Name::Plain(name), 0)?;
        let first_at = first.map(|name| self.push(Name::Plain(name), 0).map(|()| size_at + 1)).transpose()?;
        let strides = self.by_operand(strides.iter().copied());
        let dimension = Dimension { size, size_at, first_at, is_counted: false, strides };
        self.dimensions.push(self.name, dimension)
    }

    /// Strides in the order of operands; those that are not named stay where they are.
    fn by_operand(&self, strides: impl Iterator<Item = (&'static str, usize)>) -> [usize; MOST_OPERANDS] {
        let mut by_operand = [0; MOST_OPERANDS];
        for (name, stride) in strides {
            if let Some(n) = self.interface.operands.iter().position(|operand| operand.name == name) {
                by_operand[n] = stride;
            }
        }
        by_operand
    }

    /// As [`Call::walk`] over all that the call does: several dispatches may share it, where an operand is larger than
    /// a binding, and `p.count` is how many indices each has. The operands stand before it.
    pub(crate) fn walk_in_parts<const N: usize>(
        &mut self,
        count: &'static str,
        walk: &Walk<N>,
        operands: [&'static str; N],
    ) -> Result<()> {
        self.count_at = Some(self.params.len());
        self.push(Name::Plain(count), 0)?;
        let mut size_at = self.params.len();
        for (size, strides) in walk.dimensions() {
            let strides = self.by_operand(operands.into_iter().zip(strides));
            let dimension = Dimension { size, size_at, first_at: None, is_counted: true, strides };
            self.dimensions.push(self.name, dimension)?;
            size_at += 1 + N;
        }
        self.walk(walk, operands)
    }

    /// Gives each operand of a walk its `at_x(i) -> u32`: the element of the walk's `i`-th index.
    pub(crate) fn walk<const N: usize>(&mut self, walk: &Walk<N>, operands: [&'static str; N]) -> Result<()> {
        const { assert!(N <= 4 && N > 0) };
        let mut steps = Steps { rank: 0, operands: [""; 4] };
        steps.operands[..N].copy_from_slice(&operands);
        for (d, (size, strides)) in walk.dimensions().enumerate() {
            steps.rank = d + 1;
            self.push(Name::Size(operands[0], d), size)?;
            for (name, stride) in operands.iter().zip(strides) {
                self.push(Name::Stride(name, d), stride)?;
            }
        }
        self.interface.walks.push(self.name, Some(steps))
    }

    /// Gives the text `report(value: u32)`: what is reported becomes an error of the stream that names this kernel.
    pub(crate) fn reports(&mut self) {
        self.reports_that("index {} is outside its range");
    }

    /// As [`Call::reports`], in other words, `{}` being the value.
    pub(crate) fn reports_that(&mut self, what: &'static str) {
        self.interface.reports = Some(what);
    }

    /// Enqueues so many workgroups, counted by `linear(workgroup_id)` in the text; it may be called with numbers up to
    /// a row of the grid too large.
    pub(crate) fn dispatch_linear(&mut self, groups: usize) -> Result<()> {
        self.dispatch_in_parts(|_| groups)
    }

    /// As [`Call::dispatch_linear`], where a call has dimensions that several dispatches may share: `groups` gets
    /// parameters by name, and says how many workgroups a dispatch needs.
    pub(crate) fn dispatch_in_parts(&mut self, groups: impl Fn(&dyn Fn(&'static str) -> usize) -> usize) -> Result<()> {
        let limits = Limits::of(self.stream.wgpu().hardware());
        let mut division = Division::new(self.dimensions);
        let mut ways = [Way::Whole; MOST_OPERANDS];
        for (n, part) in self.parts.iter().enumerate() {
            let Some((part, _)) = part else { continue };
            let [start, stop] = part.whole(&limits);
            let room = if stop - start == part.buffer.len() { limits.bytes } else { limits.room() };
            if stop - start > room {
                let divided = division.narrow(n, part.extent(), limits.room() / part.dtype.size());
                ways[n] = if divided { Way::Part } else { Way::Windows };
            }
        }
        loop {
            let mut count = 1;
            for (dimension, first, size) in division.dimensions() {
                self.set(dimension.size_at, size)?;
                dimension.first_at.map_or(Ok(()), |at| self.set(at, first))?;
                count *= if dimension.is_counted { size } else { 1 };
            }
            self.count_at.map_or(Ok(()), |at| self.set(at, count))?;
            self.bind(&limits, &division, &ways)?;
            let param = |name| {
                let is_it = |other: &Name| matches!(other, Name::Plain(other) if *other == name);
                self.interface.params.iter().position(is_it).map_or(0, |at| self.params[at] as usize)
            };
            let groups = groups(&param);
            self.enqueue(groups)?;
            if !division.advance() {
                return Ok(());
            }
        }
    }

    /// Binds what a dispatch sees of the operands.
    fn bind(&mut self, limits: &Limits, division: &Division, ways: &[Way; MOST_OPERANDS]) -> Result<()> {
        self.bindings = Few::new(None);
        let mut needed = 0;
        // What each operand is bound as, were there no limit.
        let mut wholes: [Option<Binding<'_>>; MOST_OPERANDS] = [None; MOST_OPERANDS];
        for n in 0..self.parts.len() {
            let Some((part, base_at)) = self.parts[n] else { continue };
            let size = part.dtype.size();
            let (shift, seen) = division.part(n, part.extent());
            let first = (part.offset + shift) * size;
            let [start, stop] = match ways[n] {
                Way::Whole | Way::Windows => part.whole(limits),
                Way::Part => [first, (first + seen * size).min(part.end * size)],
            };
            let binding = Binding::new(part.buffer, start, stop.saturating_sub(start))?;
            let base = binding.skip() + first - start;
            if !base.is_multiple_of(size) {
                let name = self.interface.operands[n].name;
                return Err(refuse(self.name, format!("{name} is not aligned to its {size} bytes")));
            }
            self.set(base_at, base / size)?;
            // WebGPU has no name for what happens where bindings of a dispatch overlap.
            let shared = (0..n).find(|&other| {
                let same = wholes[other].is_some_and(|other| other.is_same(&binding));
                same && !self.interface.operands[other].quads && !part.quads
            });
            let (slot, windows) = match shared {
                Some(other) => (self.interface.operands[other].slot, self.interface.operands[other].windows),
                None => {
                    let window = if ways[n] == Way::Windows { limits.window() } else { binding.len() };
                    let slot = needed;
                    needed += binding.len().div_ceil(window);
                    if needed <= MAX_BINDINGS {
                        binding.pieces(window).try_for_each(|piece| self.bindings.push(self.name, Some(piece)))?;
                    }
                    (slot, needed - slot)
                }
            };
            let operands = &mut self.interface.operands[..=n];
            (operands[n].slot, operands[n].windows) = (slot, windows);
            let in_slot = |other: &Operand| other.dtype.is_some() && other.slot == slot;
            let is_atomic = |other: &Operand| other.written && other.dtype.is_some_and(|dtype| dtype.size() < 4);
            let atomic = operands.iter().any(|other| in_slot(other) && is_atomic(other));
            operands.iter_mut().filter(|other| in_slot(other)).for_each(|other| other.atomic = atomic);
            wholes[n] = Some(binding);
        }
        let most = limits.bindings.saturating_sub(usize::from(self.interface.reports.is_some()));
        if needed <= most {
            return Ok(());
        }
        let largest =
            wholes.iter().flatten().zip(self.interface.operands.iter().filter(|operand| operand.dtype.is_some()));
        let largest = largest.max_by_key(|(whole, _)| whole.len()).map(|(whole, operand)| (operand.name, whole.len()));
        let (name, bytes) = largest.unwrap_or_default();
        let limit = limits.bytes;
        let reason = format!(
            "{bytes} bytes of {name} are needed at once; the device binds up to {limit} at a time, and {most} times, \
             not {needed}"
        );
        Err(refuse(self.name, reason))
    }

    fn enqueue(&mut self, groups: usize) -> Result<()> {
        if groups == 0 {
            return Ok(());
        }
        let row = groups.min(GRID);
        let groups = [row, groups.div_ceil(row), 1].map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        let (wgpu, interface) = (self.stream.wgpu(), &self.interface);
        let key = interface.key(self.name)?;
        let text = || text::of(interface, self.offers, Limits::of(wgpu.hardware()).window());
        // SAFETY: the text is ours: every loop is over a range, and every divisor is a size of a dimension that has
        // elements, or a constant.
        let pipeline = unsafe { wgpu.pipeline(self.name, &key, text) }?;
        let mut bindings = [None; MAX_BINDINGS];
        bindings[..self.bindings.len()].copy_from_slice(&self.bindings);
        let Some(first) = bindings[0] else { return Err(refuse(self.name, "no operand")) };
        let bindings = bindings.map(|binding| binding.unwrap_or(first));
        self.params[0] = groups[0];
        Ok(self.stream.dispatch(&pipeline, &bindings[..self.bindings.len()], &self.params, groups)?)
    }
}

/// A list without an allocation: calls are made at each step of a model.
#[derive(Clone, Copy)]
pub(super) struct Few<T, const N: usize> {
    items: [T; N],
    len: usize,
}

impl<T: Copy, const N: usize> Few<T, N> {
    pub(super) fn new(filler: T) -> Self {
        Self { items: [filler; N], len: 0 }
    }

    pub(super) fn push(&mut self, kernel: &'static str, item: T) -> Result<()> {
        let room =
            self.items.get_mut(self.len).ok_or_else(|| refuse(kernel, format!("more than {N} of a call's parts")))?;
        *room = item;
        self.len += 1;
        Ok(())
    }
}

impl<T, const N: usize> std::ops::Deref for Few<T, N> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.items[..self.len]
    }
}

impl<T, const N: usize> std::ops::DerefMut for Few<T, N> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.items[..self.len]
    }
}
