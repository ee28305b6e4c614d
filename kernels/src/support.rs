//! What is supported: operators by dtypes and devices, asked of the rows themselves.

use std::fmt;
use std::sync::Arc;

use sinew_memory::{Device, DeviceKind, Hardware};
use sinew_tensor::{BlockFormat, BlockValues, DType, Tensor, View, ViewMut};

use crate::accuracy::{self, RowReport};
use crate::case::{Case, Lay, Reference, Values};
use crate::operator::Operands;
use crate::packed::{Encoding, Format};
use crate::registry::{Registry, Table};
use crate::{Result, Row};

/// How the operand that a table of support names a problem by is stored: a weight, a cache, what is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoredAs {
    /// Value by value. A cache in int8 or fp8 has scales beside its values.
    Plain(DType),
    /// As codes, whose scales are shared by blocks of a row: packed weights only.
    Blocks(BlockFormat),
}

impl StoredAs {
    /// Every way: each dtype, and of block-quantized weights each kind of values, in groups of 32 with scales in bf16.
    pub fn all() -> impl Iterator<Item = Self> {
        let blocks = |values| BlockFormat::new(values, 32, DType::BF16, false).ok().map(Self::Blocks);
        DType::ALL.into_iter().map(Self::Plain).chain(BlockValues::ALL.into_iter().filter_map(blocks))
    }

    /// The dtype, where values are stored one by one.
    pub fn plain(self) -> Option<DType> {
        match self {
            Self::Plain(dtype) => Some(dtype),
            Self::Blocks(_) => None,
        }
    }

    /// The format in which a kind of device keeps weights that are stored so, if there is one.
    pub fn format(self, device: DeviceKind) -> Option<&'static Format> {
        match self {
            Self::Plain(dtype) => Format::of(Encoding::Float(dtype), device),
            Self::Blocks(format) => Format::of(Encoding::Blocks(format), device),
        }
    }
}

impl fmt::Display for StoredAs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(dtype) => f.pad(dtype.name()),
            Self::Blocks(format) => f.pad(&format!("{} blocks", format.values().name())),
        }
    }
}

/// What a device does with a problem of an operator whose operand is stored in one way.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// The operator.
    pub operator: &'static str,
    /// How the operand is stored.
    pub stored: StoredAs,
    /// The problem that was asked about; none where the operator has no such operand.
    pub problem: Option<String>,
    /// The rows that take it.
    pub rows: Vec<&'static str>,
    /// Why others do not, or why none can.
    pub refused: Vec<String>,
}

impl Cell {
    /// Whether a row takes the problem.
    pub fn is_supported(&self) -> bool {
        !self.rows.is_empty()
    }
}

/// The case of a cell.
fn case<O: Reference>(stored: StoredAs, device: DeviceKind) -> Option<Case<O>> {
    let (fixed, call) = O::stored_as(stored, device)?;
    Some(Case { fixed, call, lay: Lay::Contiguous, values: Values::Normal, seed: 0 })
}

/// The operator's own check of a case: what is no problem of it is supported by no row, whatever a row says.
fn check<O: Reference>(case: &Case<O>) -> Result<()> {
    let mut host = O::operands(case)?;
    let inputs: Vec<Option<View<'_>>> = host.inputs.iter().map(|o| o.as_ref().map(|o| o.tensor.view())).collect();
    let outputs: Vec<&mut Tensor> = host.outputs.iter_mut().map(|o| &mut o.tensor).collect();
    let outputs = outputs.into_iter().map(Tensor::view_mut).collect::<Result<Vec<ViewMut<'_>>, _>>()?;
    O::check(&case.fixed, &case.call, Operands { inputs: &inputs, outputs: &outputs })
}

/// See [`crate::AnyTable::support`].
pub(crate) fn cells<O: Reference>(table: &Table<O>, hardware: &Hardware) -> Vec<Cell> {
    let cell = |stored| {
        let none = Cell { operator: O::NAME, stored, problem: None, rows: Vec::new(), refused: Vec::new() };
        let Some(case) = case::<O>(stored, hardware.kind) else { return none };
        let problem = Some(format!("{}; {}", case.fixed, case.call));
        if let Err(error) = check(&case) {
            return Cell { problem, refused: vec![error.to_string()], ..none };
        }
        let (rows, refused) = table.candidates(&case.fixed, hardware);
        let rows: Vec<&str> = rows.into_iter().map(|row| row.name).collect();
        let mut refused: Vec<String> = refused.into_iter().map(|(row, reason)| format!("{row}: {reason}")).collect();
        if rows.is_empty() && refused.is_empty() {
            refused.push(format!("no row of the table runs on {}", hardware.kind));
        }
        Cell { problem, rows, refused, ..none }
    };
    StoredAs::all().map(cell).collect()
}

/// See [`crate::AnyTable::try_stored`].
pub(crate) fn try_stored<O: Reference>(rows: &[Row<O>], stored: StoredAs, device: &Arc<dyn Device>) -> Vec<RowReport> {
    let kind = device.id().kind;
    let Some(case) = case::<O>(stored, kind) else { return Vec::new() };
    rows.iter().filter(|row| row.device == kind).map(|row| accuracy::try_case(row, &case, device)).collect()
}

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
