//! The context: everything that a call needs besides its operands.

use std::sync::Arc;

use sinew_kernels::{Operator, Registry, Row};
use sinew_memory::messages::Severity;
use sinew_memory::{Arena, Buffer, Cpu, CpuStream, Device, MemoryReport, Pool, PoolConfig, SimdLevel, Stream, Team};
use sinew_tensor::{DType, Layout, Tensor};

use crate::choice::Choices;
use crate::error::{operand, refuse};
use crate::launch::Workspace;
use crate::record::Recorder;
use crate::trust::Trust;
use crate::tune::{Times, Timings, TuningCache};
use crate::{Policy, Result};

/// Device, stream, pool, registry and policy: passed to every operator, never global.
///
/// `Context` is `Send` and `Sync`; calls from several threads are serialised where they share its workspace.
///
/// ```
/// use sinew_ops::Context;
/// use sinew_tensor::Tensor;
///
/// let ctx = Context::cpu()?;
/// let a = ctx.tensor(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
/// let b = sinew_ops::matmul(&a, &a).run(&ctx)?;
/// assert_eq!(b.to_vec::<f32>()?, [7.0, 10.0, 15.0, 22.0]);
/// # Ok::<(), sinew_ops::Error>(())
/// ```
#[derive(Debug)]
pub struct Context {
    device: Arc<dyn Device>,
    stream: Arc<dyn Stream>,
    pool: Pool,
    registry: Arc<Registry>,
    policy: Policy,
    choices: Choices,
    trust: Trust,
    recorder: Recorder,
    /// What was measured of problems on this hardware.
    tuning: Timings,
    workspace: Workspace,
}

impl Context {
    /// The CPU with all its threads, Sinew's own rows and the default policy.
    ///
    /// # Errors
    /// A device that cannot make a stream.
    pub fn cpu() -> Result<Self> {
        Self::on(sinew_memory::Cpu::get(), Policy::default())
    }

    /// A device with Sinew's own rows.
    ///
    /// ```
    /// use sinew_memory::Cpu;
    /// use sinew_ops::{Context, Policy};
    ///
    /// let prefer = vec!["gemm.cpu.portable".to_owned()];
    /// assert!(Context::on(Cpu::get(), Policy { prefer, ..Policy::default() }).is_ok());
    /// let prefer = vec!["gemm.abacus".to_owned()];
    /// assert!(Context::on(Cpu::get(), Policy { prefer, ..Policy::default() }).is_err());
    /// ```
    ///
    /// # Errors
    /// A device that cannot make a stream, or a policy that prefers what no row is called.
    pub fn on(device: Arc<dyn Device>, policy: Policy) -> Result<Self> {
        Policy::check_names(&policy.prefer)?;
        Self::new(device, Arc::new(Registry::standard()), policy)
    }

    /// A context on any device with any registry: rows and operators added outside are chosen like Sinew's own.
    ///
    /// # Errors
    /// A device that cannot make a stream.
    pub fn new(device: Arc<dyn Device>, registry: Arc<Registry>, policy: Policy) -> Result<Self> {
        sinew_memory::messages::listen(|severity, text| match severity {
            Severity::Debug => tracing::debug!("{text}"),
            Severity::Warning => tracing::warn!("{text}"),
            Severity::Error => tracing::error!("{text}"),
        });
        let stream = device.clone().stream()?;
        let pool = Pool::new(device.clone(), PoolConfig::default());
        let (choices, trust, recorder, tuning, workspace) = Default::default();
        Ok(Self { device, stream, pool, registry, policy, choices, trust, recorder, tuning, workspace })
    }

    /// The same, choosing by what [`tune`](crate::tune()) measured on this hardware with this registry and kept in
    /// `cache`. Under a deterministic policy that moves among rows of one arithmetic, and no bit of a result changes.
    ///
    /// ```
    /// use sinew_ops::{Context, TuningCache};
    ///
    /// let ctx = Context::cpu()?.with_tuning(&TuningCache::of_user());
    /// # Ok::<(), sinew_ops::Error>(())
    /// ```
    #[must_use]
    pub fn with_tuning(mut self, cache: &TuningCache) -> Self {
        self.tuning = cache.timings(&self);
        self.choices = Choices::default();
        self
    }

    /// What was measured of a problem, `like` being the representative of its calls.
    pub(crate) fn measured<O: Operator>(&self, fixed: &O::Static, like: &O::Dynamic) -> Option<&Times> {
        self.tuning.of::<O>(fixed, like)
    }

    /// The same that takes no more than so many bytes of its device's memory: weights, caches and activations together.
    /// What it has handed out counts: where that is more already, it stays, and nothing more is taken until enough of it
    /// is gone. The last limit holds.
    ///
    /// ```
    /// use sinew_ops::Context;
    /// use sinew_tensor::DType;
    ///
    /// let ctx = Context::cpu()?.with_memory_limit(8 << 20);
    /// let held = ctx.uninitialised_tagged("results", DType::F32, &[1024, 1024])?;
    /// let refused = ctx.uninitialised(DType::F32, &[1024, 2048]).expect_err("there are 4 MiB left");
    /// assert!(refused.to_string().contains("results 4.0 MiB"), "{refused}");
    /// # Ok::<(), sinew_ops::Error>(())
    /// ```
    #[must_use]
    pub fn with_memory_limit(self, bytes: usize) -> Self {
        self.pool.limit(bytes);
        self
    }

    /// Bytes that it could still take of its device's memory.
    ///
    /// # Errors
    /// A device that does not say.
    pub fn available_memory(&self) -> Result<usize> {
        Ok(self.device.memory()?.available.min(self.memory_limit_left()))
    }

    /// Bytes that its [limit](Self::with_memory_limit) leaves of what it may take, whatever is free on the device.
    pub fn memory_limit_left(&self) -> usize {
        let (stats, limit) = (self.pool.stats(), self.pool.config().limit_bytes);
        limit.saturating_sub(stats.reserved_bytes.saturating_add(stats.apart_bytes))
    }

    /// Who holds its memory: live buffers by what they are for, what is free, and how scattered that is. Models call
    /// theirs weights, kv cache, activations, rotary tables, logits and workspace.
    pub fn memory_report(&self) -> MemoryReport {
        self.pool.report()
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// The stream that work is enqueued on.
    pub fn stream(&self) -> &Arc<dyn Stream> {
        &self.stream
    }

    /// The pool that results are allocated from.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The tables.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// The policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    pub(crate) fn trust(&self) -> &Trust {
        &self.trust
    }

    pub(crate) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    pub(crate) fn choices(&self) -> &Choices {
        &self.choices
    }

    /// Whether there are times by which rows are chosen for an operator's problem.
    pub(crate) fn is_timed(&self, operator: &str, key: &str, rows: impl Iterator<Item = &'static str>) -> bool {
        self.tuning.has(operator, key, rows)
    }

    /// Whether it chooses by what was measured.
    pub(crate) fn is_tuned(&self) -> bool {
        !self.tuning.is_empty()
    }

    pub(crate) fn workspace(&self) -> &Workspace {
        &self.workspace
    }

    /// A contiguous tensor on the context's device with a copy of host values, one for each element.
    ///
    /// ```
    /// use sinew_ops::Context;
    ///
    /// let ctx = Context::cpu()?;
    /// assert_eq!(ctx.tensor(&[1.0f32, 2.0], &[2, 1])?.to_vec::<f32>()?, [1.0, 2.0]);
    /// let error = ctx.tensor(&[1.0f32], &[1024]).map(drop).expect_err("1023 elements would be left unwritten");
    /// assert_eq!(error.to_string(), "tensor: shape [1024] has 1024 elements; values given: 1");
    /// # Ok::<(), sinew_ops::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fewer or more values than the shape has elements, or out of memory.
    pub fn tensor<T: sinew_tensor::Element>(&self, values: &[T], shape: &[usize]) -> Result<Tensor> {
        self.tensor_tagged("", values, shape)
    }

    /// [`Context::tensor`], counted under `tag` in [`Context::memory_report`] and in errors.
    ///
    /// # Errors
    /// Those of [`Context::tensor`].
    pub fn tensor_tagged<T: sinew_tensor::Element>(&self, tag: &str, values: &[T], shape: &[usize]) -> Result<Tensor> {
        let (given, elements) = (values.len(), Layout::contiguous(shape)?.elements());
        if given != elements {
            return Err(refuse("tensor", format!("shape {shape:?} has {elements} elements; values given: {given}")));
        }
        let mut tensor = self.uninitialised_tagged(tag, T::DTYPE, shape)?;
        self.upload(values, &mut tensor)?;
        Ok(tensor)
    }

    /// Copies host values over the first elements of a contiguous tensor, as many as there are values. The other
    /// elements keep what they hold.
    ///
    /// ```
    /// use sinew_ops::Context;
    ///
    /// let ctx = Context::cpu()?;
    /// let mut x = ctx.tensor(&[1.0f32, 2.0, 3.0], &[3])?;
    /// ctx.upload(&[7.0f32], &mut x)?;
    /// assert_eq!(x.to_vec::<f32>()?, [7.0, 2.0, 3.0]);
    /// # Ok::<(), sinew_ops::Error>(())
    /// ```
    ///
    /// # Errors
    /// More values than elements, another dtype, a tensor that is not contiguous, or a shared tensor.
    pub fn upload<T: sinew_tensor::Element>(&self, values: &[T], into: &mut Tensor) -> Result<()> {
        let layout = into.layout();
        let rule = if T::DTYPE != into.dtype() {
            "values must have the dtype of the tensor"
        } else if !layout.is_contiguous() {
            "the tensor must be contiguous"
        } else if values.len() > layout.elements() {
            "there can be at most one value for each element"
        } else {
            return Ok(into.upload(&*self.stream, values)?);
        };
        let (target, given) = (operand("the tensor", into), values.len());
        Err(refuse("upload", format!("{target}; values given: {given} of {}; {rule}", T::DTYPE)))
    }

    /// A contiguous tensor from the pool whose values are unspecified: for an operator to write.
    ///
    /// # Errors
    /// Out of memory, or a shape that is too large.
    pub fn uninitialised(&self, dtype: DType, shape: &[usize]) -> Result<Tensor> {
        self.uninitialised_tagged("", dtype, shape)
    }

    /// [`Context::uninitialised`], counted under `tag` in [`Context::memory_report`] and in errors.
    ///
    /// # Errors
    /// Those of [`Context::uninitialised`].
    pub fn uninitialised_tagged(&self, tag: &str, dtype: DType, shape: &[usize]) -> Result<Tensor> {
        self.uninitialised_of(dtype, shape, |bytes| self.pool.uninitialised_tagged(bytes, tag))
    }

    /// [`Context::uninitialised`] from an arena on the context's device instead of its pool.
    ///
    /// ```
    /// use sinew_memory::Arena;
    /// use sinew_ops::Context;
    /// use sinew_tensor::DType;
    ///
    /// let ctx = Context::cpu()?;
    /// let arena = Arena::planned(ctx.device(), 1000)?;
    /// let x = ctx.uninitialised_in(&arena, DType::F32, &[5, 50])?;
    /// assert_eq!(x.shape(), [5, 50]);
    /// assert!(ctx.uninitialised_in(&arena, DType::F32, &[1]).is_err());
    /// # Ok::<(), sinew_ops::Error>(())
    /// ```
    ///
    /// # Errors
    /// An arena without that much room, or a shape that is too large.
    pub fn uninitialised_in(&self, arena: &Arena, dtype: DType, shape: &[usize]) -> Result<Tensor> {
        self.uninitialised_of(dtype, shape, |bytes| arena.uninitialised(bytes))
    }

    fn uninitialised_of(
        &self,
        dtype: DType,
        shape: &[usize],
        allocate: impl FnOnce(usize) -> sinew_memory::Result<Buffer>,
    ) -> Result<Tensor> {
        let layout = Layout::contiguous(shape)?;
        let buffer = allocate(layout.elements() * dtype.size())?;
        buffer.record_use(&self.stream);
        Ok(Tensor::new(buffer, dtype, layout)?)
    }

    /// The threads and SIMD level for work on host memory: the context's own on the CPU, else the machine's.
    pub(crate) fn host_team(&self) -> (Team, SimdLevel) {
        let stream: &dyn std::any::Any = &*self.stream;
        if let Some(cpu) = stream.downcast_ref::<CpuStream>() {
            return (cpu.team().clone(), self.device.hardware().simd);
        }
        let host = Cpu::shared();
        (host.team().clone(), host.hardware().simd)
    }

    /// Threads of the host that pack weights.
    pub fn host_threads(&self) -> usize {
        self.host_team().0.threads()
    }

    /// Compiles kernels of the device ahead of their use: see [`Registry::prefetch`].
    ///
    /// # Errors
    /// A kernel that cannot be compiled.
    pub fn prefetch(&self) -> Result<()> {
        Ok(self.registry.prefetch(&self.device)?)
    }

    /// Waits for all work and reports its first error.
    ///
    /// # Errors
    /// That of the work, named by its operator.
    pub fn synchronize(&self) -> Result<()> {
        Ok(self.stream.synchronize()?)
    }

    /// The row for a problem: remembered per static part and bucket of the dynamic part.
    ///
    /// # Errors
    /// No row takes the problem on this device; the message says why each refused.
    pub fn choose<O: Operator>(&self, fixed: &O::Static, call: &O::Dynamic) -> Result<Row<O>> {
        Ok(*self.choices.get::<O>(self, fixed, call)?.row())
    }
}
