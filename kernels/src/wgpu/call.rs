//! A call of a kernel: operands, options and parameters, and from them the pipeline's key and text.

use sinew_memory::webgpu::{Binding, MAX_PARAMS, WgpuStream};
use sinew_memory::{Accelerator, Buffer, Device, Hardware};
use sinew_tensor::{DType, View};

use super::text;
use crate::operator::{Launch, refuse};
use crate::strided::Walk;
use crate::{Error, Result};

/// The most of each that a call has: what WebGPU promises to bind, with what is left out or shares a binding; a few
/// words of options.
const MOST_OPERANDS: usize = 12;
const MOST_OPTIONS: usize = 24;
const MOST_WALKS: usize = 2;
/// Words of a pipeline's key: options, operands, ranks of walks, whether it reports.
const KEY: usize = MOST_OPTIONS + MOST_OPERANDS + MOST_WALKS + 1;
/// Workgroups of a row of a grid that is counted in one dimension: every adapter takes as many.
const GRID: usize = 1 << 15;

/// A list without an allocation: calls are made at each step of a model.
pub(super) struct Few<T, const N: usize> {
    items: [T; N],
    len: usize,
}

impl<T: Copy, const N: usize> Few<T, N> {
    fn new(filler: T) -> Self {
        Self { items: [filler; N], len: 0 }
    }

    fn push(&mut self, kernel: &'static str, item: T) -> Result<()> {
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

/// An operand as the text sees it.
#[derive(Clone, Copy)]
pub(super) struct Operand {
    pub(super) name: &'static str,
    /// `None` where the operand is absent.
    pub(super) dtype: Option<DType>,
    pub(super) written: bool,
    /// Bound as vectors of four words.
    pub(super) quads: bool,
    /// The number of its binding, which operands of one buffer share.
    pub(super) slot: usize,
    /// Whether the words of the binding are atomic: where any operand in it is written in less than words.
    pub(super) atomic: bool,
}

impl Operand {
    fn code(&self) -> u32 {
        let dtype = self.dtype.map_or(0, |dtype| 1 + dtype as u32);
        let flags = [self.written, self.quads, self.atomic].into_iter().fold(0, |all, flag| all << 1 | u32::from(flag));
        dtype << 16 | flags << 8 | self.slot as u32
    }
}

/// Dimensions of a walk, and the operands that it goes over.
#[derive(Clone, Copy)]
pub(super) struct Steps {
    pub(super) rank: usize,
    pub(super) operands: [&'static str; 4],
}

/// A parameter's name: its own, or that of a walk's sizes and strides.
#[derive(Clone, Copy)]
pub(super) enum Name {
    Plain(&'static str),
    Base(&'static str),
    Size(&'static str, usize),
    Stride(&'static str, usize),
}

/// A call of a kernel in WGSL: see the [module](super).
pub(crate) struct Call<'a> {
    stream: &'a WgpuStream,
    /// What the device offers, which is the same for all calls that share its pipelines.
    pub(super) offers: &'a Accelerator,
    name: &'static str,
    pub(super) body: &'static str,
    pub(super) options: Few<(&'static str, u32), MOST_OPTIONS>,
    pub(super) operands: Few<Operand, MOST_OPERANDS>,
    bindings: Few<Option<Binding<'a>>, MOST_OPERANDS>,
    pub(super) names: Few<Name, MAX_PARAMS>,
    params: Few<u32, MAX_PARAMS>,
    pub(super) walks: Few<Option<Steps>, MOST_WALKS>,
    pub(super) reports: Option<&'static str>,
}

/// Whether a view begins, and steps in every dimension but the last, at multiples of so many elements, and its last
/// dimension is contiguous: whether such vectors of elements can be loaded.
pub(crate) fn aligned(view: &View<'_>, elements: usize) -> bool {
    let begins = view.buffer().span().offset + view.layout().offset() * view.dtype().size();
    let strides = view.strides();
    begins.is_multiple_of(elements * view.dtype().size())
        && strides.split_last().is_none_or(|(&last, leading)| {
            (last == 1 || view.shape().last() == Some(&1)) && leading.iter().all(|s| s.is_multiple_of(elements))
        })
}

/// What of a view a kernel sees, and as what.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    buffer: &'a Buffer,
    dtype: DType,
    /// Elements of `dtype`: the view's first, and one past its last.
    offset: usize,
    end: usize,
    range: Option<[usize; 2]>,
    written: bool,
    quads: bool,
}

impl<'a> Part<'a> {
    /// A view that is read.
    pub(crate) fn read(view: &View<'a>) -> Self {
        let layout = view.layout();
        let (offset, end) = (layout.offset(), layout.end());
        Self { buffer: view.buffer(), dtype: view.dtype(), offset, end, range: None, written: false, quads: false }
    }

    /// A view that is written, and may be read.
    pub(crate) fn write(view: &View<'a>) -> Self {
        Self { written: true, ..Self::read(view) }
    }

    /// The same bytes as elements of another dtype: packed weights, caches.
    pub(crate) fn of(self, dtype: DType) -> Self {
        let [offset, end] = [self.offset, self.end].map(|at| at * self.dtype.size() / dtype.size());
        Self { dtype, offset, end, ..self }
    }

    /// Only elements `first..end`, counted from the view's element of index 0: for kernels that take in several
    /// dispatches what is larger than a binding. Element `first` is 0 in the text.
    pub(crate) fn range(self, first: usize, end: usize) -> Self {
        Self { range: Some([first, end]), ..self }
    }

    /// Bound as vectors of four words: see [`aligned`].
    pub(crate) fn quads(self) -> Self {
        Self { quads: true, ..self }
    }
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
        let absent = Operand { name: "", dtype: None, written: false, quads: false, slot: 0, atomic: false };
        let offers = stream.wgpu().hardware().accelerator.as_ref();
        let mut call = Self {
            stream,
            offers: offers.ok_or_else(|| refuse(name, "a device that says nothing of what it offers"))?,
            name,
            body,
            options: Few::new(("", 0)),
            operands: Few::new(absent),
            bindings: Few::new(None),
            names: Few::new(Name::Plain("")),
            params: Few::new(0),
            walks: Few::new(None),
            reports: None,
        };
        // Workgroups of a row of the grid, which a dispatch fills in.
        call.push(Name::Plain("groups"), 0)?;
        Ok(call)
    }

    /// A constant of the text: `const NAME: u32`.
    pub(crate) fn option(&mut self, name: &'static str, value: u32) -> Result<()> {
        self.options.push(self.name, (name, value))
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
                let absent = Operand { name, dtype: None, written: false, quads: false, slot: 0, atomic: false };
                self.operands.push(self.name, absent)
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

    /// Scratch bytes as words: `load_x(i)` is an f32.
    pub(crate) fn workspace(&mut self, name: &'static str, launch: &Launch<'a>) -> Result<()> {
        let buffer = launch.workspace().ok_or_else(|| refuse(self.name, "no workspace"))?;
        self.bind(name, DType::F32, Binding::new(buffer, 0, buffer.len())?, 0, true, false)
    }

    /// An operand, as its [`Part`] says.
    pub(crate) fn part(&mut self, name: &'static str, part: Part<'a>) -> Result<()> {
        let Part { buffer, dtype, offset, end, range, written, quads } = part;
        let size = dtype.size();
        // Views that move about in a buffer share a bind group, where a kernel sees all of the buffer at once.
        let whole = range.is_none() && buffer.len() <= max_binding(self.stream);
        let [first, last] = range.map_or([offset, end], |range| range.map(|at| offset + at)).map(|at| at * size);
        let [start, stop] = if whole { [0, buffer.len()] } else { [first, last] };
        let binding = Binding::new(buffer, start, stop.saturating_sub(start))?;
        let base = binding.skip() + first - start;
        if !base.is_multiple_of(size) {
            return Err(refuse(self.name, format!("{name} is not aligned to its {size} bytes")));
        }
        self.bind(name, dtype, binding, base / size, written, quads)
    }

    fn bind(
        &mut self,
        name: &'static str,
        dtype: DType,
        binding: Binding<'a>,
        base: usize,
        written: bool,
        quads: bool,
    ) -> Result<()> {
        let atomic = written && dtype.size() < 4;
        let same = |other: &Option<Binding<'_>>| other.is_some_and(|other| other.is_same(&binding));
        // WebGPU has no name for what happens where bindings of a dispatch overlap.
        let shared = self.bindings.iter().position(same).filter(|&slot| {
            self.operands
                .iter()
                .all(|other| other.dtype.is_none() || other.slot != slot || other.quads == quads && !quads)
        });
        let slot = match shared {
            Some(slot) => slot,
            None => {
                self.bindings.push(self.name, Some(binding))?;
                self.bindings.len() - 1
            }
        };
        let in_slot = |other: &Operand| other.dtype.is_some() && other.slot == slot;
        let atomic = atomic || self.operands.iter().any(|other| in_slot(other) && other.atomic);
        let count = self.operands.len;
        self.operands.items[..count].iter_mut().filter(|other| in_slot(other)).for_each(|other| other.atomic = atomic);
        self.operands.push(self.name, Operand { name, dtype: Some(dtype), written, quads, slot, atomic })?;
        self.push(Name::Base(name), base)
    }

    fn push(&mut self, name: Name, value: usize) -> Result<()> {
        let word = u32::try_from(value).map_err(|_| refuse(self.name, format!("{value} is beyond 32-bit indices")))?;
        self.names.push(self.name, name)?;
        self.params.push(self.name, word)
    }

    /// A parameter, `p.name` in the text.
    pub(crate) fn param(&mut self, name: &'static str, value: usize) -> Result<()> {
        self.push(Name::Plain(name), value)
    }

    /// A parameter that is the bits of an f32.
    pub(crate) fn param_f32(&mut self, name: &'static str, value: f32) -> Result<()> {
        self.push(Name::Plain(name), value.to_bits() as usize)
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
        self.walks.push(self.name, Some(steps))
    }

    /// Gives the text `report(value: u32)`: what is reported becomes an error of the stream that names this kernel.
    pub(crate) fn reports(&mut self) {
        self.reports_that("index {} is outside its range");
    }

    /// As [`Call::reports`], in other words, `{}` being the value.
    pub(crate) fn reports_that(&mut self, what: &'static str) {
        self.reports = Some(what);
    }

    /// Enqueues so many workgroups, counted by `linear(workgroup_id)` in the text; it may be called with numbers up to
    /// a row of the grid too large.
    pub(crate) fn dispatch_linear(&mut self, groups: usize) -> Result<()> {
        let row = groups.min(GRID);
        self.dispatch([row, if row == 0 { 0 } else { groups.div_ceil(row) }, 1])
    }

    /// Enqueues workgroups in three dimensions.
    pub(crate) fn dispatch(&mut self, groups: [usize; 3]) -> Result<()> {
        if groups.contains(&0) {
            return Ok(());
        }
        let mut key = Few::<u32, KEY>::new(0);
        let options = self.options.iter().map(|&(_, value)| value);
        let operands = self.operands.iter().map(Operand::code);
        let walks = self.walks.iter().flatten().map(|walk| walk.rank as u32);
        for word in options.chain(operands).chain(walks).chain([u32::from(self.reports.is_some())]) {
            key.push(self.name, word)?;
        }
        // SAFETY: the text is ours: every loop is over a range, and every divisor is a size of a dimension that has
        // elements, or a constant.
        let pipeline = unsafe { self.stream.wgpu().pipeline(self.name, &key, || text::of(self)) }?;
        let mut bindings = [None; MOST_OPERANDS];
        bindings[..self.bindings.len].copy_from_slice(&self.bindings);
        let Some(first) = bindings[0] else { return Err(refuse(self.name, "no operand")) };
        let bindings = bindings.map(|binding| binding.unwrap_or(first));
        let groups = groups.map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        self.params.items[0] = groups[0];
        Ok(self.stream.dispatch(&pipeline, &bindings[..self.bindings.len], &self.params, groups)?)
    }
}

/// The most bytes of a buffer that kernels of a stream's device see at once.
fn max_binding(stream: &WgpuStream) -> usize {
    largest(stream.wgpu().hardware())
}

/// The most bytes of a buffer that a kernel sees at once, with room for the alignment of where it begins.
pub(crate) fn largest_part(launch: &Launch<'_>) -> usize {
    largest(launch.stream().device().hardware()).saturating_sub(Binding::ALIGNMENT)
}

fn largest(hardware: &Hardware) -> usize {
    hardware.accelerator.as_ref().map_or(0, |offers| offers.max_binding_bytes)
}
