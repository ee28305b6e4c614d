//! `sinew devices`.

use std::io::{self, Write};

use clap::Args;
use serde_json::json;
use sinew::kernels::rates::Description;
use sinew::memory::{DeviceKind, Discovered, Found, discover};
use sinew::models::Settings;

use super::arguments::{CHOOSING, DEVICE, MEMORY, refused};
use super::output::complain;
use super::{Outcome, Run};

/// List the devices of this machine, or why there are none.
#[derive(Debug, Args)]
#[command(args = refused(&[MEMORY, CHOOSING, DEVICE]))]
pub struct Devices {
    /// Measure how fast each device is, in some seconds, and keep that: bandwidth, rates of arithmetic, the time that it
    /// takes to start work. What was kept is shown from then on.
    #[arg(long)]
    measure: bool,
    /// Print one JSON object and nothing else.
    #[arg(long)]
    json: bool,
}

impl Devices {
    pub fn run(&self, run: &Run) -> Outcome {
        run.refuse(&[MEMORY], "is for models: no device is held to it alone")?;
        run.refuse(&[CHOOSING], "is for what runs kernels of a model or of an operator")?;
        run.refuse(&[DEVICE], "is for what runs on one device: all that there are are listed")?;
        let mut devices = discover();
        let mut out = std::io::stdout().lock();
        let mut all = Vec::new();
        for device in &mut devices {
            // As it is used, whatever the environment says.
            if let Found::Host(host) = &mut device.found {
                host.simd = run.settings().simd_level();
            }
            let speed = self.speed(run, device)?;
            if self.json {
                let mut value = as_json(device);
                if let (Some(fields), Some(speed)) = (value.as_object_mut(), &speed) {
                    fields.insert("measured".to_owned(), speed_json(speed));
                }
                all.push(value);
                continue;
            }
            print(&mut out, device)?;
            if let Some(speed) = speed {
                speed.to_string().lines().try_for_each(|line| writeln!(out, "  {line}"))?;
            }
        }
        if self.json {
            writeln!(out, "{}", json!({ "devices": all }))?;
        }
        Ok(())
    }

    /// How fast a device is: measured now, or what was kept.
    fn speed(&self, run: &Run, device: &Discovered) -> Outcome<Option<Description>> {
        let folder = run.settings().device_cache();
        let opened = match device.found {
            Found::Nothing { .. } => return Ok(None),
            // A GPU is not opened to be looked at.
            _ if device.kind != DeviceKind::CPU && !self.measure => {
                return Ok(Description::kept_of_found(device, &folder));
            }
            _ => run.open(&of_device(run, &device.name), Settings::open_device)?,
        };
        if !self.measure {
            return Ok(Description::kept(&opened, &folder));
        }
        let measured = Description::measure_and_keep(&opened, &folder)?;
        if Description::kept(&opened, &folder).is_none() {
            let why = folder.folder().map_or_else(
                || "device_cache is not set, and neither XDG_CACHE_HOME nor HOME is an absolute path".to_owned(),
                |folder| format!("{} cannot be written, or by others as well", folder.display()),
            );
            complain(&format!("{}: what was measured is not kept: {why}", device.name));
        }
        Ok(Some(measured))
    }
}

/// The settings of this run, of a device: the CPU has the threads that were asked for.
pub fn of_device(run: &Run, name: &str) -> Settings {
    let settings = run.settings().clone();
    let pin = settings.pin && name == DeviceKind::CPU.to_string();
    Settings { device: name.to_owned(), pin, ..settings }
}

fn gib(bytes: usize) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

fn kib(bytes: usize) -> String {
    if bytes >= 1 << 20 { format!("{} MiB", bytes >> 20) } else { format!("{} KiB", bytes >> 10) }
}

fn print(out: &mut impl Write, device: &Discovered) -> io::Result<()> {
    match &device.found {
        Found::Host(host) => {
            writeln!(out, "{}: {}", device.name, host.name)?;
            writeln!(out, "  SIMD {}, {} cores, {} threads usable", host.simd, host.cores, host.threads)?;
            let caches = host.caches;
            writeln!(out, "  caches L1d {}, L2 {}, L3 {}", kib(caches.l1d), kib(caches.l2), kib(caches.l3))?;
            writeln!(out, "  memory {} of {} available", gib(host.available_bytes), gib(host.total_bytes))?;
            let cpus = host.cpu_quota.map_or_else(|| "no CPU limit".into(), |q| format!("{q} CPUs"));
            let memory = host.memory_limit_bytes.map_or_else(|| "no memory limit".into(), gib);
            writeln!(out, "  cgroup {cpus}, {memory}")?;
        }
        Found::Gpu(gpu) => {
            let (major, minor) = gpu.compute_capability;
            let (driver, revision) = gpu.driver_version;
            writeln!(out, "{}: {}, sm_{major}{minor}, {} SMs", device.name, gpu.name, gpu.multiprocessors)?;
            let (memory, shared) = (gib(gpu.total_bytes), kib(gpu.shared_bytes));
            writeln!(out, "  memory {memory}, shared by a block {shared}, driver for CUDA {driver}.{revision}")?;
        }
        Found::Adapter(adapter) => {
            writeln!(out, "{}: {} ({}, {})", device.name, adapter.name, adapter.backend, adapter.device_type)?;
            let (low, high) = adapter.subgroup_size;
            let subgroups =
                if adapter.subgroups { format!("subgroups {low} to {high}") } else { "no subgroups".into() };
            writeln!(
                out,
                "  {}; bindings to {} MiB, shared by a workgroup {}, f16 {}, {subgroups}",
                adapter.driver,
                adapter.max_binding_bytes >> 20,
                kib(adapter.max_workgroup_bytes as usize),
                adapter.f16
            )?;
        }
        Found::Nothing { reason } => writeln!(out, "{}: none: {reason}", device.name)?,
        _ => writeln!(out, "{}", device.name)?,
    }
    Ok(())
}

fn as_json(device: &Discovered) -> serde_json::Value {
    let mut value = match &device.found {
        Found::Host(host) => json!({
            "name": host.name,
            "simd": host.simd.to_string(),
            "cores": host.cores,
            "threads": host.threads,
            "caches": { "l1d": host.caches.l1d, "l2": host.caches.l2, "l3": host.caches.l3 },
            "cgroup_cpus": host.cpu_quota,
            "cgroup_memory_bytes": host.memory_limit_bytes,
            "memory_bytes": host.total_bytes,
            "available_bytes": host.available_bytes,
        }),
        Found::Gpu(gpu) => json!({
            "name": gpu.name,
            "compute_capability": [gpu.compute_capability.0, gpu.compute_capability.1],
            "multiprocessors": gpu.multiprocessors,
            "shared_bytes": gpu.shared_bytes,
            "memory_bytes": gpu.total_bytes,
            "driver_cuda_version": [gpu.driver_version.0, gpu.driver_version.1],
        }),
        Found::Adapter(adapter) => json!({
            "name": adapter.name,
            "backend": adapter.backend,
            "type": adapter.device_type,
            "driver": adapter.driver,
            "max_binding_bytes": adapter.max_binding_bytes,
            "max_buffer_bytes": adapter.max_buffer_bytes,
            "max_workgroup_bytes": adapter.max_workgroup_bytes,
            "f16": adapter.f16,
            "subgroups": adapter.subgroups,
            "subgroup_size": [adapter.subgroup_size.0, adapter.subgroup_size.1],
        }),
        Found::Nothing { reason } => json!({ "none": reason }),
        _ => json!({}),
    };
    if let Some(fields) = value.as_object_mut() {
        fields.insert("device".to_owned(), json!(device.name));
        fields.insert("kind".to_owned(), json!(device.kind.to_string()));
    }
    value
}

/// The measured limits, by the names of their fields.
fn speed_json(speed: &Description) -> serde_json::Value {
    let bandwidth = speed.bandwidth.iter().map(|rate| {
        json!({
            "threads": rate.threads,
            "read_bytes_per_s": rate.read_bytes_per_s,
            "copy_bytes_per_s": rate.copy_bytes_per_s,
        })
    });
    json!({
        "bandwidth": bandwidth.collect::<Vec<_>>(),
        "arithmetic": speed.arithmetic.map(|peaks| json!({
            "f32_flops_per_s": peaks.f32_flops_per_s,
            "bf16_flops_per_s": peaks.bf16_flops_per_s,
            "int8_ops_per_s": peaks.int8_ops_per_s,
        })),
        "products": speed.products.map(|rates| json!({
            "f32_flops_per_s": rates.f32_flops_per_s,
            "bf16_flops_per_s": rates.bf16_flops_per_s,
        })),
        "fork_join_s": speed.fork_join_s,
    })
}
