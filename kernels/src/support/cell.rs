//! What a device does with one problem of an operator, asked of the rows themselves.

use std::sync::Arc;

use sinew_memory::{Device, Hardware};
use sinew_tensor::{Tensor, View, ViewMut};

use crate::Result;
use crate::harness::accuracy::{self, RowReport};
use crate::harness::case::{Case, Lay, Reference, Values};
use crate::harness::suite::Suite;
use crate::operator::Operands;
use crate::support::stored::StoredAs;
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

/// The case of a cell: with a packed operand in the first format that a row takes, where there is one.
fn case<O: Reference>(table: &Table<O>, stored: StoredAs, hardware: &Hardware) -> Option<Case<O>> {
    let packed: Vec<_> = stored.formats().filter_map(O::packed_as).collect();
    let taken = packed.iter().position(|(fixed, _)| table.takes(fixed, hardware));
    let packed = packed.into_iter().nth(taken.unwrap_or(0));
    let (fixed, call) = packed.or_else(|| O::stored_as(stored))?;
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
        let Some(case) = case(table, stored, hardware) else { return none };
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
pub(crate) fn try_stored<O: Reference>(table: &Table<O>, stored: StoredAs, device: &Arc<dyn Device>) -> Vec<RowReport> {
    let hardware = device.hardware();
    let Some(case) = case(table, stored, hardware) else { return Vec::new() };
    accuracy::try_case(&Suite { rows: table.of(hardware).copied().collect(), cases: vec![case] }, device)
}
