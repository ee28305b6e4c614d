//! What a device does with one problem of an operator, asked of the rows themselves.

use std::sync::Arc;

use sinew_memory::{Device, DeviceKind, Hardware};
use sinew_tensor::{Tensor, View, ViewMut};

use crate::Result;
use crate::accuracy::{self, RowReport};
use crate::case::{Case, Lay, Reference, Values};
use crate::operator::{Operands, Row};
use crate::stored::StoredAs;
use crate::table::Table;

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
