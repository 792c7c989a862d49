//! How large a terminal is.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::problem::FieldFault;

/// How large a terminal is, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Window {
    #[schema(minimum = 1, maximum = 65535)]
    pub rows: u32,
    #[schema(minimum = 1, maximum = 65535)]
    pub columns: u32,
}

impl Window {
    /// The size of a terminal that does not know its own.
    pub const USUAL: Window = Window { rows: 24, columns: 80 };

    /// Rows and columns as the kernel takes them; `within` is the field that holds the window, if one does.
    pub fn check(self, within: Option<&str>) -> Result<(u16, u16), FieldFault> {
        let number = |name: &str, found: u32| {
            let field = within.map_or_else(|| name.to_string(), |within| format!("{within}.{name}"));
            let fault = || FieldFault::new(&field, format!("expected from 1 to 65535, found {found}"));
            u16::try_from(found).ok().filter(|&number| number > 0).ok_or_else(fault)
        };
        Ok((number("rows", self.rows)?, number("columns", self.columns)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_that_no_terminal_has_is_refused_by_its_field() {
        let check = |rows, columns, within| Window { rows, columns }.check(within).map_err(|fault| fault.to_string());
        assert_eq!(check(24, 65535, None), Ok((24, 65535)));
        assert_eq!(check(0, 80, None), Err("rows: expected from 1 to 65535, found 0".into()));
        assert_eq!(check(24, 65536, Some("pty")), Err("pty.columns: expected from 1 to 65535, found 65536".into()));
    }
}
