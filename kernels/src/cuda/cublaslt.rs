//! cuBLASLt, NVIDIA's library of matrix products, found at run time.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::c_void;
use std::ptr;
use std::sync::{Mutex, OnceLock};

use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys::{
    self, cublasLtEpilogue_t as Epilogue, cublasLtMatmulDescAttributes_t as DescAttribute,
    cublasLtMatmulPreferenceAttributes_t as PreferenceAttribute, cublasLtMatrixLayoutAttribute_t as LayoutAttribute,
    cublasLtReductionScheme_t as Reduction, cublasStatus_t as Status, cudaDataType_t as DataType,
};
use sinew_memory::cuda::{CallError, DriverCall, Handle};
use sinew_tensor::DType;

use crate::operator::Refusal;

/// Plans that are kept; a model that prefills prompts of any length makes one for each.
const MOST_PLANS: usize = 1024;

/// Whether the library is there.
pub(crate) fn present() -> Result<(), Refusal> {
    static PRESENT: OnceLock<bool> = OnceLock::new();
    // Asked first, since cudarc panics at the first call into a library that is not there.
    // SAFETY: this loads the library, whose initialisers are NVIDIA's.
    if *PRESENT.get_or_init(|| unsafe { sys::is_culib_present() }) {
        return Ok(());
    }
    Err(Refusal::of_hardware(
        "libcublasLt (of a CUDA toolkit or the package nvidia-cublas) was not found; put its folder on the library path",
    ))
}

/// A matrix, or a batch of such. They lie by columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Matrix {
    /// f32, f16 or bf16.
    pub dtype: DType,
    pub rows: usize,
    pub columns: usize,
    /// Elements from a column to the next.
    pub leading: usize,
    /// Elements from a matrix to the next of its batch.
    pub batch_stride: usize,
    /// A power of two in bytes that the address is a multiple of.
    pub alignment: u32,
}

/// `D = alpha · op(X)·op(Y) + bias + beta · C`, all that the choice of an algorithm depends on. Sums are of f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Product {
    pub batch: usize,
    /// X, Y, C and D.
    pub matrices: [Matrix; 4],
    /// Whether X and Y are to be transposed.
    pub transposed: [bool; 2],
    /// Whether there is a bias, an element of D's type for each of its rows.
    pub biased: bool,
    /// Bytes of the workspace.
    pub workspace: usize,
}

/// What else a call brings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operands {
    /// Of X, Y, C and D.
    pub addresses: [u64; 4],
    pub bias: u64,
    pub workspace: u64,
    pub alpha: f32,
    pub beta: f32,
}

fn failed(call: &'static str) -> impl Fn(CublasError) -> CallError {
    move |error| CallError {
        call,
        reason: error.to_string(),
        out_of_memory: error.0 == Status::CUBLAS_STATUS_ALLOC_FAILED,
    }
}

fn data_type(dtype: DType) -> DriverCall<DataType> {
    match dtype {
        DType::F32 => Ok(DataType::CUDA_R_32F),
        DType::F16 => Ok(DataType::CUDA_R_16F),
        DType::BF16 => Ok(DataType::CUDA_R_16BF),
        other => Err(CallError {
            call: "cublasLtMatrixLayoutCreate",
            reason: format!("no products of {other}"),
            out_of_memory: false,
        }),
    }
}

/// The library, opened for a device, with the plans made so far.
pub(crate) struct CublasLt {
    handle: sys::cublasLtHandle_t,
    /// `None` for what the library has no algorithm for.
    plans: Mutex<HashMap<Product, Option<Plan>>>,
}

// SAFETY: the library's calls may come from any thread (cuBLAS documentation, "Thread Safety"); descriptions are
// reached under the lock.
unsafe impl Send for CublasLt {}
// SAFETY: as above.
unsafe impl Sync for CublasLt {}

impl CublasLt {
    /// Opens the library for the device whose context is current to this thread.
    pub fn open() -> DriverCall<Self> {
        let absent =
            |reason: Refusal| CallError { call: "cublasLtCreate", reason: reason.to_string(), out_of_memory: false };
        present().map_err(absent)?;
        let handle = result::create_handle().map_err(failed("cublasLtCreate"))?;
        Ok(Self { handle, plans: Mutex::default() })
    }

    /// Enqueues a product, in the device's context. Returns whether the library has an algorithm for it: without one
    /// nothing is enqueued.
    ///
    /// # Safety
    /// The matrices, the bias and the workspace are the device's and as the product says, and stay valid until the
    /// stream has passed the product. D overlaps none of them, but that C may be D.
    pub unsafe fn enqueue(&self, product: &Product, operands: &Operands, stream: Handle) -> DriverCall<bool> {
        let mut plans = self.plans.lock().unwrap_or_else(|e| e.into_inner());
        if plans.len() >= MOST_PLANS && !plans.contains_key(product) {
            plans.clear();
        }
        let plan = match plans.entry(*product) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(Plan::new(self.handle, product)?),
        };
        let Some(plan) = plan else { return Ok(false) };
        if product.biased {
            plan.description.set(DescAttribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &operands.bias)?;
        }
        let [x, y, c, d] = operands.addresses.map(|address| address as *mut c_void);
        let [x_layout, y_layout, c_layout, d_layout] = plan.layouts.each_ref().map(|layout| layout.raw);
        let factors = [&operands.alpha, &operands.beta].map(|factor| ptr::from_ref(factor).cast());
        // SAFETY: the plan's handles are alive, and the rest is the caller's promise.
        let enqueued = unsafe {
            result::matmul(
                self.handle,
                plan.description.raw,
                factors[0],
                factors[1],
                x,
                x_layout,
                y,
                y_layout,
                c,
                c_layout,
                d,
                d_layout,
                &plan.algorithm,
                operands.workspace as *mut c_void,
                product.workspace,
                stream as sys::cudaStream_t,
            )
        };
        enqueued.map_err(failed("cublasLtMatmul"))?;
        Ok(true)
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        // SAFETY: it was created once, and every plan's handles are their own.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

/// A product with the algorithm that the library chose.
struct Plan {
    description: Description,
    layouts: [Layout; 4],
    algorithm: sys::cublasLtMatmulAlgo_t,
}

impl Plan {
    fn new(handle: sys::cublasLtHandle_t, product: &Product) -> DriverCall<Option<Self>> {
        let description = description()?;
        // `cublasOperation_t`: as it is is 0, transposed 1.
        let [x, y] = product.transposed.map(i32::from);
        description.set(DescAttribute::CUBLASLT_MATMUL_DESC_TRANSA, &x)?;
        description.set(DescAttribute::CUBLASLT_MATMUL_DESC_TRANSB, &y)?;
        if product.biased {
            description.set(DescAttribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &Epilogue::CUBLASLT_EPILOGUE_BIAS)?;
            let dtype = data_type(product.matrices[3].dtype)?;
            description.set(DescAttribute::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &dtype)?;
        }
        let [x, y, c, d] = &product.matrices;
        let layouts = [
            layout(x, product.batch)?,
            layout(y, product.batch)?,
            layout(c, product.batch)?,
            layout(d, product.batch)?,
        ];
        let preference = preference()?;
        preference.set(PreferenceAttribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &product.workspace)?;
        // Of the ways to split K, the one that keeps parts in f32.
        let reductions = Reduction::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
        preference.set(PreferenceAttribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions)?;
        let alignments = [
            PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ];
        for (attribute, matrix) in alignments.into_iter().zip(&product.matrices) {
            preference.set(attribute, &matrix.alignment)?;
        }
        // SAFETY: all of these are alive.
        let found = unsafe {
            let [x, y, c, d] = layouts.each_ref().map(|layout| layout.raw);
            result::get_matmul_algo_heuristic(handle, description.raw, x, y, c, d, preference.raw)
        };
        match found {
            Ok(found) => Ok(Some(Self { description, layouts, algorithm: found.algo })),
            Err(CublasError(Status::CUBLAS_STATUS_NOT_SUPPORTED)) => Ok(None),
            Err(error) => Err(failed("cublasLtMatmulAlgoGetHeuristic")(error)),
        }
    }
}

/// A description that the library holds: what sets an attribute of it, by NVIDIA's name, and what destroys it.
struct Described<T: Copy, A> {
    raw: T,
    call: &'static str,
    set: unsafe fn(T, A, *const c_void, usize) -> Result<(), CublasError>,
    destroy: unsafe fn(T) -> Result<(), CublasError>,
}

type Description = Described<sys::cublasLtMatmulDesc_t, DescAttribute>;
type Layout = Described<sys::cublasLtMatrixLayout_t, LayoutAttribute>;
type Preference = Described<sys::cublasLtMatmulPreference_t, PreferenceAttribute>;

impl<T: Copy, A> Described<T, A> {
    fn set<V>(&self, attribute: A, value: &V) -> DriverCall<()> {
        // SAFETY: the description is alive, and the library copies the value.
        unsafe { (self.set)(self.raw, attribute, ptr::from_ref(value).cast(), size_of::<V>()) }
            .map_err(failed(self.call))
    }
}

impl<T: Copy, A> Drop for Described<T, A> {
    fn drop(&mut self) {
        // SAFETY: it was created once.
        let _ = unsafe { (self.destroy)(self.raw) };
    }
}

fn description() -> DriverCall<Description> {
    let made = result::create_matmul_desc(sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, DataType::CUDA_R_32F);
    Ok(Described {
        raw: made.map_err(failed("cublasLtMatmulDescCreate"))?,
        call: "cublasLtMatmulDescSetAttribute",
        set: result::set_matmul_desc_attribute,
        destroy: result::destroy_matmul_desc,
    })
}

fn layout(matrix: &Matrix, batch: usize) -> DriverCall<Layout> {
    let &Matrix { dtype, rows, columns, leading, batch_stride, .. } = matrix;
    let made = result::create_matrix_layout(data_type(dtype)?, rows as u64, columns as u64, leading as i64);
    let layout = Described {
        raw: made.map_err(failed("cublasLtMatrixLayoutCreate"))?,
        call: "cublasLtMatrixLayoutSetAttribute",
        set: result::set_matrix_layout_attribute,
        destroy: result::destroy_matrix_layout,
    };
    if batch > 1 {
        // A number that does not fit is more than the library takes, as is the largest that does.
        let batch = i32::try_from(batch).unwrap_or(i32::MAX);
        layout.set(LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch)?;
        layout.set(LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &(batch_stride as i64))?;
    }
    Ok(layout)
}

fn preference() -> DriverCall<Preference> {
    Ok(Described {
        raw: result::create_matmul_pref().map_err(failed("cublasLtMatmulPreferenceCreate"))?,
        call: "cublasLtMatmulPreferenceSetAttribute",
        set: result::set_matmul_pref_attribute,
        destroy: result::destroy_matmul_pref,
    })
}
