//! Rows of a text table, plain or compressed, read in bounded memory. Knows quoting and line ends, not what the columns
//! mean.
//!
//! Lines are split here and not by the crate `csv`, which takes any bytes for a table: it joins what follows a closing quote
//! to the cell, and reads on to the end of the file if a quote is never closed, where we name the line.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::ops::RangeInclusive;
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use crate::error::{Error, shown, suggestion};

/// A longer line is taken for something else than a table.
const LONGEST_LINE: usize = 1 << 20;
/// More rows than this are refused, so that a small compressed file cannot fill the memory.
pub(crate) const MOST_ROWS: u64 = 10_000_000;

/// What a table looks like and which columns are of interest.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    /// The columns, asked for by their index here. One may go by several names: `num_gpus|gpu_num`.
    pub(crate) columns: &'static [&'static str],
    /// The first so many must be there.
    pub(crate) required: usize,
    pub(crate) separator: Separator,
    pub(crate) header: Header,
}

/// Columns of a layout: a constant for the place of each, and a list of what they are called.
macro_rules! columns {
    (@place $visible:vis, $at:expr;) => {};
    (@place $visible:vis, $at:expr; $name:ident $($rest:ident)*) => {
        #[allow(dead_code)]
        $visible const $name: usize = $at;
        $crate::table::columns!(@place $visible, $at + 1; $($rest)*);
    };
    ($visible:vis $all:ident: $($name:ident = $text:literal),* $(,)?) => {
        $visible const $all: &[&str] = &[$($text),*];
        $crate::table::columns!(@place $visible, 0; $($name)*);
    };
}
pub(crate) use columns;

impl Layout {
    /// Commas, and a header that may name other columns as well.
    pub(crate) const fn named(columns: &'static [&'static str], required: usize) -> Layout {
        Layout { columns, required, separator: Separator::Comma, header: Header::Loose }
    }

    /// All of these columns, usually without a header.
    pub(crate) const fn bare(columns: &'static [&'static str], separator: Separator) -> Layout {
        Layout { columns, required: columns.len(), separator, header: Header::Optional }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Separator {
    /// Commas, with quotes around cells that contain one.
    Comma,
    Tab,
    Bar,
    /// Any number of blanks; lines that start with `;` are comments.
    Blanks,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Header {
    /// Names all columns; others than those of the layout are faults.
    Strict,
    /// Names all columns; others than those of the layout are passed over.
    Loose,
    /// May be missing: then the columns are those of the layout in their order.
    Optional,
}

/// A table, read row by row.
pub(crate) struct Table {
    lines: Lines,
    separator: Separator,
    /// What each column of the layout is called in this file.
    names: Vec<String>,
    /// Where each of them stands in the file.
    positions: Vec<Option<usize>>,
    others: Vec<String>,
    width: usize,
    named: bool,
    cells: Cells,
    /// The current line has been read, but not as a row.
    ahead: bool,
    rows: u64,
}

/// One row; its cells are asked for by the index of their column.
pub(crate) struct Row<'a> {
    pub(crate) line: u64,
    file: &'a str,
    names: &'a [String],
    positions: &'a [Option<usize>],
    cells: &'a Cells,
}

impl Table {
    /// Opens a table with a header that names no other columns than these, the first `required` of which must be there.
    pub(crate) fn open(path: &Path, columns: &'static [&'static str], required: usize) -> Result<Table, Error> {
        Table::lay_out(path, Layout { columns, required, separator: Separator::Comma, header: Header::Strict })
    }

    /// Opens a table and reads its header, if it has one.
    pub(crate) fn lay_out(path: &Path, layout: Layout) -> Result<Table, Error> {
        let mut lines = Lines::open(path)?;
        let mut cells = Cells::default();
        loop {
            if lines.advance()?.is_none() {
                let what = match layout.header {
                    Header::Optional => "expected rows, found an empty file",
                    Header::Strict | Header::Loose => "expected a header and rows, found an empty file",
                };
                return Err(Error::File { file: lines.file, what: what.into() });
            }
            if layout.header != Header::Optional || !layout.separator.passes_over(lines.line()) {
                break;
            }
        }
        cells.split(lines.line(), layout.separator).map_err(|what| lines.fault(what))?;
        let named = layout.header != Header::Optional || layout.names(cells.get(0).trim()).is_some();
        let mut table = Table {
            separator: layout.separator,
            names: layout.columns.iter().map(|names| first_name(names).to_string()).collect(),
            positions: (0..layout.columns.len()).map(Some).collect(),
            others: Vec::new(),
            width: layout.columns.len(),
            named,
            ahead: !named,
            lines,
            cells,
            rows: 0,
        };
        if named {
            table.read_header(layout)?;
        }
        Ok(table)
    }

    fn read_header(&mut self, layout: Layout) -> Result<(), Error> {
        self.positions.fill(None);
        self.width = self.cells.len();
        for index in 0..self.cells.len() {
            let name = self.cells.get(index).trim();
            let Some(column) = layout.names(name) else {
                if layout.header == Header::Strict {
                    let known: Vec<&str> = layout.columns.iter().map(|names| first_name(names)).collect();
                    let near = suggestion(name, known.iter().copied());
                    let what = format!("unknown column `{}`{near} (known: {})", shown(name), known.join(", "));
                    return Err(self.lines.fault(what));
                }
                self.others.extend((!name.is_empty()).then(|| shown(name)));
                continue;
            };
            if self.positions[column].replace(index).is_some() {
                return Err(self.lines.fault(format!("column `{name}` stands in the header twice")));
            }
            self.names[column] = name.to_string();
        }
        if let Some(missing) = (0..layout.required).find(|&column| self.positions[column].is_none()) {
            let header: Vec<&str> = (0..self.cells.len()).map(|index| self.cells.get(index)).collect();
            let missing = layout.columns[missing].replace('|', "` or `");
            let what = format!("missing column `{missing}` (the header has {})", shown(&header.join(",")));
            return Err(self.lines.fault(what));
        }
        Ok(())
    }

    pub(crate) fn file(&self) -> &str {
        &self.lines.file
    }

    pub(crate) fn has(&self, column: usize) -> bool {
        self.positions[column].is_some()
    }

    /// What the column is called in this file.
    pub(crate) fn name(&self, column: usize) -> &str {
        &self.names[column]
    }

    /// Columns of the file that the layout does not speak of.
    pub(crate) fn others(&self) -> &[String] {
        &self.others
    }

    /// Whether nothing more can be had from the file, so that the last fault is not one of a single row.
    pub(crate) fn is_broken(&self) -> bool {
        self.lines.broken
    }

    pub(crate) fn next_row(&mut self) -> Result<Option<Row<'_>>, Error> {
        loop {
            if !std::mem::take(&mut self.ahead) && self.lines.advance()?.is_none() {
                return Ok(None);
            }
            if !self.separator.passes_over(self.lines.line()) {
                break;
            }
        }
        self.rows += 1;
        if self.rows > MOST_ROWS {
            self.lines.broken = true;
            return Err(self.lines.fault(format!("expected at most {MOST_ROWS} rows, found more")));
        }
        self.cells.split(self.lines.line(), self.separator).map_err(|what| self.lines.fault(what))?;
        if self.cells.len() != self.width {
            let (width, found) = (self.width, self.cells.len());
            let cut = if found < width && self.lines.at_end()? {
                "; this is the last line, was the file cut short?"
            } else {
                ""
            };
            let header = if self.named { " as in the header" } else { "" };
            return Err(self.lines.fault(format!("expected {width} fields{header}, found {found}{cut}")));
        }
        Ok(Some(Row {
            line: self.lines.number,
            file: &self.lines.file,
            names: &self.names,
            positions: &self.positions,
            cells: &self.cells,
        }))
    }
}

fn first_name(names: &str) -> &str {
    names.split('|').next().unwrap_or(names)
}

impl Layout {
    /// The column that goes by this name.
    fn names(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|names| names.split('|').any(|known| known == name))
    }
}

impl Separator {
    /// Whether a line is no row: blank, or a comment.
    fn passes_over(self, line: &str) -> bool {
        let line = line.trim();
        line.is_empty() || (self == Separator::Blanks && line.starts_with(';'))
    }
}

impl<'a> Row<'a> {
    /// The cell without blanks around it, if the column is there and the cell is not empty.
    pub(crate) fn text(&self, column: usize) -> Option<&'a str> {
        let cell = self.cells.get(self.positions[column]?).trim();
        (!cell.is_empty()).then_some(cell)
    }

    /// The cell of a column that must not be empty.
    pub(crate) fn required(&self, column: usize, expected: &str) -> Result<&'a str, Error> {
        self.text(column).ok_or_else(|| self.fault(column, expected, ""))
    }

    pub(crate) fn whole<N>(&self, column: usize, range: RangeInclusive<N>) -> Result<Option<N>, Error>
    where
        N: std::str::FromStr + PartialOrd + std::fmt::Display + Copy,
    {
        let Some(text) = self.text(column) else { return Ok(None) };
        let found = text.parse().ok().filter(|number| range.contains(number));
        let expected = || format!("a whole number from {} to {}", range.start(), range.end());
        found.map(Some).ok_or_else(|| self.fault(column, expected(), text))
    }

    pub(crate) fn real(&self, column: usize, range: RangeInclusive<f64>) -> Result<Option<f64>, Error> {
        let Some(text) = self.text(column) else { return Ok(None) };
        let found = text.parse().ok().filter(|number| range.contains(number));
        let expected = || format!("a number from {} to {}", range.start(), range.end());
        found.map(Some).ok_or_else(|| self.fault(column, expected(), text))
    }

    /// A whole number, which may be written like `8.0`.
    pub(crate) fn count(&self, column: usize, range: RangeInclusive<u32>) -> Result<Option<u32>, Error> {
        let Some(text) = self.text(column) else { return Ok(None) };
        let digits = text.strip_suffix(".0").unwrap_or(text);
        let found = digits.parse().ok().filter(|number| range.contains(number));
        let expected = || format!("a whole number from {} to {}", range.start(), range.end());
        found.map(Some).ok_or_else(|| self.fault(column, expected(), text))
    }

    /// The parts of a cell like `a|b`.
    pub(crate) fn list(&self, column: usize) -> impl Iterator<Item = &'a str> + use<'a> {
        self.text(column).into_iter().flat_map(|text| text.split('|')).map(str::trim).filter(|part| !part.is_empty())
    }

    pub(crate) fn fault(&self, column: usize, expected: impl Into<String>, found: &str) -> Error {
        Error::Field {
            file: self.file.into(),
            line: self.line,
            column: self.names[column].clone(),
            expected: expected.into(),
            found: shown(found),
        }
    }

    /// A fault of the row that no single column is to blame for.
    pub(crate) fn line_fault(&self, what: impl Into<String>) -> Error {
        Error::Line { file: self.file.into(), line: self.line, what: what.into() }
    }
}

/// The fields of one line, without quotes.
#[derive(Default)]
struct Cells {
    text: String,
    ends: Vec<usize>,
}

impl Cells {
    fn len(&self) -> usize {
        self.ends.len()
    }

    fn get(&self, index: usize) -> &str {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.text[start..self.ends[index]]
    }

    fn split(&mut self, line: &str, separator: Separator) -> Result<(), String> {
        self.text.clear();
        self.ends.clear();
        match separator {
            Separator::Comma => return self.split_quoted(line),
            Separator::Tab => line.split('\t').for_each(|cell| self.push(cell)),
            Separator::Bar => line.split('|').for_each(|cell| self.push(cell)),
            Separator::Blanks => line.split_whitespace().for_each(|cell| self.push(cell)),
        }
        Ok(())
    }

    fn push(&mut self, cell: &str) {
        self.text.push_str(cell);
        self.ends.push(self.text.len());
    }

    /// Splits at commas. Within double quotes commas are text, and two quotes are one.
    fn split_quoted(&mut self, line: &str) -> Result<(), String> {
        let mut rest = line;
        loop {
            let more = if let Some(quoted) = rest.trim_start_matches(' ').strip_prefix('"') {
                self.quoted(quoted)?
            } else {
                let (cell, more) = rest.split_once(',').map_or((rest, None), |(cell, more)| (cell, Some(more)));
                self.text.push_str(cell);
                more
            };
            self.ends.push(self.text.len());
            match more {
                Some(more) => rest = more,
                None => return Ok(()),
            }
        }
    }

    /// Takes a cell whose opening quote is gone; what follows the comma after it is returned.
    fn quoted<'a>(&mut self, mut rest: &'a str) -> Result<Option<&'a str>, String> {
        loop {
            let (part, after) = rest.split_once('"').ok_or("expected a closing quote on the same line, found none")?;
            self.text.push_str(part);
            if let Some(more) = after.strip_prefix('"') {
                self.text.push('"');
                rest = more;
                continue;
            }
            let after = after.trim_start_matches(' ');
            return match after.strip_prefix(',') {
                None if after.is_empty() => Ok(None),
                None => Err(format!("expected a comma after the closing quote, found {}", shown(after))),
                Some(more) => Ok(Some(more)),
            };
        }
    }
}

/// The bytes of a file, unpacked if it is compressed, whatever it is called.
pub(crate) struct Source {
    pub(crate) file: String,
    pub(crate) bytes: Box<dyn BufRead>,
    packed: bool,
}

impl Source {
    pub(crate) fn open(path: &Path) -> Result<Source, Error> {
        let file = path.display().to_string();
        let failed = |source| Error::Read { file: file.clone(), source };
        let mut plain = BufReader::with_capacity(1 << 16, File::open(path).map_err(failed)?);
        let packed = plain.fill_buf().map_err(failed)?.starts_with(&[0x1f, 0x8b]);
        let bytes: Box<dyn BufRead> = if packed {
            Box::new(BufReader::with_capacity(1 << 16, MultiGzDecoder::new(plain)))
        } else {
            Box::new(plain)
        };
        Ok(Source { file, bytes, packed })
    }

    /// What it means that reading failed in a line.
    pub(crate) fn unreadable(&self, line: u64, source: io::Error) -> Error {
        let what = match source.kind() {
            io::ErrorKind::UnexpectedEof if self.packed => {
                "the compressed data ends in the middle; the file was cut short".into()
            }
            io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData if self.packed => {
                format!("the compressed data is damaged ({source})")
            }
            _ => return Error::Read { file: self.file.clone(), source },
        };
        Error::Line { file: self.file.clone(), line, what }
    }
}

/// The lines of a file, with their numbers. Refuses what is not text before it is in memory.
struct Lines {
    file: String,
    source: Source,
    bytes: Vec<u8>,
    number: u64,
    broken: bool,
}

impl Lines {
    fn open(path: &Path) -> Result<Lines, Error> {
        let source = Source::open(path)?;
        Ok(Lines { file: source.file.clone(), source, bytes: Vec::new(), number: 0, broken: false })
    }

    /// Reads the next line, which `line` then shows; `None` at the end.
    fn advance(&mut self) -> Result<Option<()>, Error> {
        self.bytes.clear();
        self.number += 1;
        // Only a line that is no UTF-8 leaves the file fit for more.
        self.broken = true;
        if self.number > 2 * MOST_ROWS {
            return Err(self.fault(format!("expected at most {} lines, found more", 2 * MOST_ROWS)));
        }
        let most = LONGEST_LINE as u64 + 1;
        match Read::take(&mut self.source.bytes, most).read_until(b'\n', &mut self.bytes) {
            Ok(0) => {
                self.broken = false;
                return Ok(None);
            }
            Ok(_) => {}
            Err(source) => return Err(self.source.unreadable(self.number, source)),
        }
        if self.bytes.contains(&0) {
            return Err(self.fault("expected text, found a zero byte".into()));
        }
        if self.bytes.len() > LONGEST_LINE {
            return Err(self.fault(format!("expected lines of at most {LONGEST_LINE} bytes, found a longer one")));
        }
        self.broken = false;
        while self.bytes.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
            self.bytes.pop();
        }
        if self.number == 1 && self.bytes.starts_with(b"\xef\xbb\xbf") {
            self.bytes.drain(..3);
        }
        match std::str::from_utf8(&self.bytes) {
            Ok(_) => Ok(Some(())),
            Err(error) => {
                let at = error.valid_up_to();
                Err(self.fault(format!(
                    "expected UTF-8 text, found byte 0x{:02x} at column {}",
                    self.bytes[at],
                    at + 1
                )))
            }
        }
    }

    fn line(&self) -> &str {
        std::str::from_utf8(&self.bytes).expect("checked when the line was read")
    }

    fn at_end(&mut self) -> Result<bool, Error> {
        match self.source.bytes.fill_buf() {
            Ok(rest) => Ok(rest.is_empty()),
            Err(source) => {
                self.broken = true;
                Err(self.source.unreadable(self.number, source))
            }
        }
    }

    fn fault(&self, what: String) -> Error {
        Error::Line { file: self.file.clone(), line: self.number, what }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const COLUMNS: &[&str] = &["a", "b", "c"];

    /// The cells of a file with these bytes, rows on lines of their own; or what is wrong with it.
    fn read(bytes: &[u8]) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.csv");
        std::fs::write(&path, bytes).unwrap();
        let read = || -> Result<String, Error> {
            let mut table = Table::open(&path, COLUMNS, 1)?;
            let mut text = String::new();
            while let Some(row) = table.next_row()? {
                let cells: Vec<&str> = (0..3).map(|column| row.text(column).unwrap_or("-")).collect();
                text += &format!("{}:{} ", row.line, cells.join("/"));
            }
            Ok(text)
        };
        let text = read().unwrap_or_else(|error| error.to_string());
        text.trim_end().replace(&format!("{}", path.display()), "FILE")
    }

    #[test]
    fn columns_may_stand_in_any_order_and_be_left_out() {
        assert_eq!(read(b"c,a\n1,2\n,3\n"), "2:2/-/1 3:3/-/-");
    }

    #[test]
    fn windows_line_ends_a_byte_order_mark_and_blank_lines_are_accepted() {
        assert_eq!(read(b"\xef\xbb\xbfa,b\r\n1,2\r\n\r\n3,4"), "2:1/2/- 4:3/4/-");
    }

    #[test]
    fn quoted_commas_and_quotes_are_text() {
        assert_eq!(read(b"a,b\n\"1,5\",\"say \"\"x\"\"\"\n"), "2:1,5/say \"x\"/-");
        assert_eq!(read(b"a,b\n\"1,5\n"), "FILE:2: expected a closing quote on the same line, found none");
    }

    #[test]
    fn a_truncated_last_line_is_said_to_be_one() {
        let cut = "FILE:3: expected 2 fields as in the header, found 1; this is the last line, was the file cut short?";
        assert_eq!(read(b"a,b\n1,2\n3"), cut);
        assert_eq!(read(b"a,b\n1\n3,4\n"), "FILE:2: expected 2 fields as in the header, found 1");
    }

    #[test]
    fn a_header_with_unknown_missing_or_doubled_columns_is_refused() {
        assert_eq!(read(b"a,aa\n"), "FILE:1: unknown column `aa`; did you mean `a`? (known: a, b, c)");
        assert_eq!(read(b"b,c\n"), "FILE:1: missing column `a` (the header has b,c)");
        assert_eq!(read(b"a,a\n"), "FILE:1: column `a` stands in the header twice");
        assert_eq!(read(b""), "FILE: expected a header and rows, found an empty file");
    }

    #[test]
    fn bytes_that_are_not_text_are_refused_with_their_place() {
        assert_eq!(read(b"a\n1\n\xff\n"), "FILE:3: expected UTF-8 text, found byte 0xff at column 1");
        assert_eq!(read(b"a\n1\n\0\n"), "FILE:3: expected text, found a zero byte");
        let long = [b"a\n".as_slice(), &vec![b'1'; LONGEST_LINE + 1]].concat();
        assert_eq!(read(&long), "FILE:2: expected lines of at most 1048576 bytes, found a longer one");
    }

    #[test]
    fn a_compressed_file_is_read_and_one_cut_in_the_middle_is_refused() {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        packer.write_all(b"a,b\n").unwrap();
        (0..2000).for_each(|row| writeln!(packer, "{row},{}", row * 7919 % 1013).unwrap());
        let packed = packer.finish().unwrap();
        assert!(read(&packed).starts_with("2:0/0/- 3:1/828/-"));
        let error = read(&packed[..packed.len() / 2]);
        assert!(error.ends_with("the compressed data ends in the middle; the file was cut short"), "{error}");
    }

    #[test]
    fn ten_gigabytes_of_nothing_are_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("huge.csv");
        let file = File::create(&path).unwrap();
        file.set_len(10 << 30).unwrap();
        let error = Table::open(&path, COLUMNS, 1).err().expect("zeros are no table").to_string();
        assert!(error.ends_with("huge.csv:1: expected text, found a zero byte"), "{error}");
        let mut file = File::create(&path).unwrap();
        file.write_all(b"a\n1\n").unwrap();
        file.set_len(10 << 30).unwrap();
        let mut table = Table::open(&path, COLUMNS, 1).unwrap();
        assert!(table.next_row().is_ok());
        let error = table.next_row().err().expect("zeros are no row").to_string();
        assert!(error.ends_with("huge.csv:3: expected text, found a zero byte"), "{error}");
    }
}
