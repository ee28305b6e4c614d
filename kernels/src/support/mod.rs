//! What is supported: operators by dtypes and devices, asked of the rows themselves.

pub(crate) mod cell;
pub(crate) mod stored;

use std::fmt;
use std::sync::Arc;

use sinew_memory::Device;

pub use self::cell::Cell;
pub use self::stored::StoredAs;
use crate::registry::Registry;

/// What a registry supports on devices. Printed as a table: a line for each operator and device, a column for each way in
/// which an operand may be stored, in which `yes` is said where a row takes the problem, `-` where none does, and nothing
/// where there is no such problem.
///
/// ```
/// use sinew_kernels::Registry;
/// use sinew_kernels::support::Support;
/// use sinew_memory::Cpu;
///
/// let support = Support::of(&Registry::standard(), [&Cpu::get()]);
/// assert!(support.to_string().contains("attention"));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Support {
    /// Each device's name with its cells, operator after operator.
    pub devices: Vec<(String, Vec<Cell>)>,
}

impl Support {
    /// Asks every row of a registry, of these devices.
    pub fn of<'d>(registry: &Registry, devices: impl IntoIterator<Item = &'d Arc<dyn Device>>) -> Self {
        let cells = |device: &Arc<dyn Device>| registry.tables().flat_map(|t| t.support(device.hardware())).collect();
        Self { devices: devices.into_iter().map(|device| (device.id().to_string(), cells(device))).collect() }
    }
}

impl fmt::Display for Support {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = || self.devices.iter().flat_map(|(device, cells)| cells.iter().map(move |cell| (device, cell)));
        let operator = all().map(|(_, cell)| cell.operator.len()).max().unwrap_or(0).max("operator".len());
        let device = self.devices.iter().map(|(device, _)| device.len()).max().unwrap_or(0).max("device".len());
        let columns: Vec<String> = StoredAs::all().map(|stored| stored.to_string()).collect();
        writeln!(f, "{:operator$}  {:device$}  {}", "operator", "device", columns.join("  "))?;
        let mut operators: Vec<&str> = Vec::new();
        for (_, cell) in all() {
            if !operators.contains(&cell.operator) {
                operators.push(cell.operator);
            }
        }
        for name in operators {
            for (on, cells) in &self.devices {
                let said = |(stored, column): (StoredAs, &String)| {
                    let cell = cells.iter().find(|cell| cell.operator == name && cell.stored == stored);
                    let word = match cell {
                        Some(cell) if cell.is_supported() => "yes",
                        Some(cell) if cell.problem.is_some() => "-",
                        _ => "",
                    };
                    format!("{word:width$}", width = column.len())
                };
                let line: Vec<String> = StoredAs::all().zip(&columns).map(said).collect();
                writeln!(f, "{name:operator$}  {on:device$}  {}", line.join("  ").trim_end())?;
            }
        }
        Ok(())
    }
}
