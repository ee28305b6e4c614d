//! A run on the CPU loads no GPU library. Alone in its process, since discovery does load them.

#[test]
#[cfg(target_os = "linux")]
fn opening_the_cpu_loads_neither_cuda_nor_vulkan() {
    let options = sinew_memory::DeviceOptions { threads: Some(2), ..sinew_memory::DeviceOptions::default() };
    let cpu = sinew_memory::open("cpu", &options).expect("there is a CPU");
    let pool = sinew_memory::Pool::new(cpu, sinew_memory::PoolConfig::default());
    let _buffer = pool.uninitialised(1 << 20).expect("memory");
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    for library in ["libcuda", "libvulkan", "libnvidia", "libEGL", "libGL"] {
        assert!(!maps.contains(library), "{library} was loaded");
    }
}
