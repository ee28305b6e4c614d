//! What settings are for: devices, contexts, options of loading, and the hub.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use sinew_memory::{Cpu, Device, DeviceOptions, PrivateFolder, SimdLevel, system};
use sinew_ops::layers::OldKv;
use sinew_ops::{Context, Policy, TuningCache};

use super::{Settings, WeightDType};
use crate::{Error, Hub, LoadOptions, Result, WeightOptions};

impl Settings {
    /// The SIMD level of the CPU: the machine's, if no lower one is set. The environment is not asked: what it says is in
    /// what was [resolved](super::Resolved).
    pub fn simd_level(&self) -> SimdLevel {
        let machine = SimdLevel::detected();
        self.simd.map_or(machine, |level| level.min(machine))
    }

    /// The device.
    ///
    /// # Errors
    /// A device that is not there, threads that do not start, or cores for threads of a device that has none.
    pub fn open_device(&self) -> Result<Arc<dyn Device>> {
        let threads = self.threads.map(NonZeroUsize::get);
        if !self.pin {
            let options = DeviceOptions { threads, simd: Some(self.simd_level()), kernels: self.kernel_cache() };
            return Ok(sinew_memory::open(&self.device, &options)?);
        }
        if !self.device.starts_with("cpu") {
            return Err(Error::Input(format!("the setting pin is for the CPU, not for {}", self.device)));
        }
        // A name such as cpu:7 is refused here.
        sinew_memory::open(&self.device, &DeviceOptions { threads: Some(1), ..DeviceOptions::default() })?;
        Ok(Cpu::pinned(threads.unwrap_or_else(system::available_threads), self.simd_level())?)
    }

    /// A context on the device, with Sinew's own kernels, which chooses by what was measured unless it is not to.
    ///
    /// # Errors
    /// Those of [`Settings::open_device`], and a kernel that is not there.
    pub fn open_context(&self) -> Result<Arc<Context>> {
        let ctx = self.untuned_context()?;
        Ok(Arc::new(if self.tuning { ctx.with_tuning(&self.tuning_cache()) } else { ctx }))
    }

    /// What `sinew tune` measured.
    pub fn tuning_cache(&self) -> TuningCache {
        self.tuning_cache.as_ref().map_or_else(TuningCache::of_user, |path| TuningCache::at(PrivateFolder::at(path)))
    }

    /// What `sinew devices --measure` measured.
    pub fn device_cache(&self) -> PrivateFolder {
        folder(self.device_cache.as_ref(), "devices")
    }

    /// Compiled kernels of GPUs.
    pub fn kernel_cache(&self) -> PrivateFolder {
        folder(self.kernel_cache.as_ref(), "kernels")
    }

    /// A context that chooses by predicted cost alone.
    ///
    /// # Errors
    /// Those of [`Settings::open_context`].
    pub fn untuned_context(&self) -> Result<Context> {
        let device = self.open_device()?;
        let usual = Policy::of(device.id().kind);
        let deterministic = self.deterministic.unwrap_or(usual.deterministic);
        let policy = Policy { prefer: self.kernels.clone(), deterministic };
        let ctx = Context::on(device, policy)?;
        Ok(match self.memory_limit {
            Some(limit) => ctx.with_memory_limit(limit.0),
            None => ctx,
        })
    }

    /// How weights are loaded.
    ///
    /// # Errors
    /// Zero points or a head that stays, where nothing is quantized.
    pub fn weight_options(&self) -> Result<WeightOptions> {
        let &Self { dtype, group_size, zero_points, keep_head, activations, load, .. } = self;
        let quantize = match dtype {
            WeightDType::Quantized(values) => Some(group_size.quantize(values, zero_points, keep_head)?),
            _ if zero_points => {
                return Err(Error::Input("the setting zero_points is for weights of dtype int8 and int4".to_owned()));
            }
            _ if keep_head => {
                return Err(Error::Input(
                    "the setting keep_head is for weights of dtype int8, int4 and fp8".to_owned(),
                ));
            }
            _ => None,
        };
        let dtype = if let WeightDType::Float(dtype) = dtype { Some(dtype) } else { None };
        Ok(WeightOptions { dtype, quantize, activations, load })
    }

    /// The form of old keys and values, where they have one of their own.
    pub fn old_kv(&self) -> Option<OldKv> {
        self.kv_old.0.map(|dtype| OldKv { dtype, recent: self.kv_recent.get() })
    }

    /// How a model is loaded that runs one sequence at a time.
    ///
    /// # Errors
    /// Those of [`Settings::weight_options`].
    pub fn load_options(&self) -> Result<LoadOptions> {
        Ok(LoadOptions {
            weights: self.weight_options()?,
            context: self.context.map(NonZeroUsize::get),
            prefill_chunk: self.prefill_chunk.get(),
            block_size: self.block_size.get(),
            kv: self.kv_dtype.0,
            old_kv: self.old_kv(),
            ..LoadOptions::default()
        })
    }

    /// How a model is loaded that serves many sequences.
    ///
    /// # Errors
    /// Those of [`Settings::weight_options`].
    pub fn serving_options(&self) -> Result<LoadOptions> {
        Ok(LoadOptions {
            max_sequences: self.max_sequences.get(),
            cache_tokens: self.cache_tokens.map(NonZeroUsize::get),
            swap_tokens: self.swap_tokens,
            ..self.load_options()?
        })
    }

    /// The hub, as the environment has it where nothing is set.
    pub fn hub(&self) -> Hub {
        let usual = Hub::from_env();
        Hub {
            cache: self.hub_cache.clone().or(usual.cache),
            endpoint: self.hub_endpoint.as_ref().map_or(usual.endpoint, |url| url.trim_end_matches('/').to_owned()),
            token: self.hub_token.clone().or(usual.token),
            offline: self.hub_offline.unwrap_or(usual.offline),
        }
    }
}

/// That of a setting, or the user's of this name.
fn folder(set: Option<&PathBuf>, name: &str) -> PrivateFolder {
    set.map_or_else(|| PrivateFolder::of_user(name), PrivateFolder::at)
}
