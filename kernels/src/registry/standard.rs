//! What Sinew itself brings: the rows of each operator, one line per operator, and the modules of CUDA kernels.

#[cfg(feature = "cuda")]
use std::sync::Arc;

#[cfg(feature = "cuda")]
use sinew_memory::Device;
#[cfg(feature = "cuda")]
use sinew_memory::cuda::{CudaDevice, CudaModule};

#[cfg(feature = "cuda")]
use crate::Result;
use crate::{
    Registry, activation, attention, cast, combine, elementwise, embedding, gather, gemm, grouped_gemm, kv_append,
    norm, reduce, rotary, route, sample, softmax, topk,
};

impl Registry {
    /// Every operator of Sinew with all its rows.
    pub fn standard() -> Self {
        let mut registry = Self::empty();
        registry.add(activation::rows());
        registry.add(attention::rows());
        registry.add(cast::rows());
        registry.add(combine::rows());
        registry.add(elementwise::binary_rows());
        registry.add(elementwise::unary_rows());
        registry.add(elementwise::where_rows());
        registry.add(embedding::rows());
        registry.add(gather::rows());
        registry.add(gemm::rows());
        registry.add(grouped_gemm::rows());
        registry.add(kv_append::rows());
        registry.add(norm::rows());
        registry.add(reduce::rows());
        registry.add(rotary::rows());
        registry.add(route::rows());
        registry.add(sample::rows());
        registry.add(softmax::rows());
        registry.add(topk::rows());
        #[cfg(feature = "cuda")]
        registry.add_preparation(compile);
        registry
    }
}

/// Every module of CUDA kernels: to compile them ahead of their use, and to check them where there is no GPU.
#[cfg(feature = "cuda")]
pub static CUDA_MODULES: [&CudaModule; 21] = [
    &activation::CUDA,
    &attention::CUDA[0],
    &attention::CUDA[1],
    &cast::CUDA,
    &combine::CUDA,
    &elementwise::CUDA,
    &embedding::CUDA,
    &gather::CUDA,
    &gemm::CUDA[0],
    &gemm::CUDA[1],
    &gemm::CUDA[2],
    &grouped_gemm::CUDA[0],
    &grouped_gemm::CUDA[1],
    &kv_append::CUDA,
    &norm::CUDA,
    &reduce::CUDA,
    &rotary::CUDA,
    &route::CUDA,
    &sample::CUDA,
    &softmax::CUDA,
    &topk::CUDA,
];

/// Compiles every module, where the device is an NVIDIA GPU.
#[cfg(feature = "cuda")]
fn compile(device: &Arc<dyn Device>) -> Result<()> {
    match CudaDevice::of(device) {
        Some(cuda) => Ok(cuda.prefetch(&CUDA_MODULES)?),
        None => Ok(()),
    }
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use std::path::Path;

    use super::CUDA_MODULES;

    #[test]
    fn the_ptx_of_every_module_was_made_of_its_present_source() {
        let stale: Vec<&str> =
            CUDA_MODULES.iter().filter(|module| module.fallback().is_none()).map(|m| m.name).collect();
        assert!(stale.is_empty(), "run `cargo run -p xtask -- ptx`: {stale:?} changed since");
    }

    #[test]
    fn every_cuda_source_is_in_a_module() {
        let mut found = 0;
        for operator in Path::new(env!("CARGO_MANIFEST_DIR")).join("src").read_dir().unwrap() {
            let Ok(files) = operator.unwrap().path().read_dir() else { continue };
            for path in files.map(|file| file.unwrap().path()).filter(|p| p.extension().is_some_and(|e| e == "cu")) {
                let text = std::fs::read_to_string(&path).unwrap();
                assert!(CUDA_MODULES.iter().any(|module| module.source.contains(&text)), "{}", path.display());
                found += 1;
            }
        }
        assert_eq!(found, CUDA_MODULES.len());
    }
}
