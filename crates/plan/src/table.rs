//! A table by number, for numbers that are given out in order: some may be passed over, and what is forgotten gives its
//! memory back. Rows lie in small pages, so that looking one up costs hardly more than in a vector.

use cluster::ClaimId;

/// Rows on a page. A page is given back with its last row, unless it is the page where the next numbers go.
const PAGE: usize = 512;

#[derive(Debug, Clone)]
pub struct Table<T> {
    pages: Vec<Page<T>>,
    len: usize,
}

/// An empty page that was given back takes no room.
#[derive(Debug, Clone)]
struct Page<T> {
    rows: Vec<Option<T>>,
    /// How many there are.
    len: usize,
}

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table { pages: Vec::new(), len: 0 }
    }
}

impl<T> Default for Page<T> {
    fn default() -> Page<T> {
        Page { rows: Vec::new(), len: 0 }
    }
}

impl<T> Table<T> {
    #[inline]
    pub fn get(&self, id: ClaimId) -> Option<&T> {
        self.pages.get(id.0 as usize / PAGE)?.rows.get(id.0 as usize % PAGE)?.as_ref()
    }

    #[inline]
    pub fn get_mut(&mut self, id: ClaimId) -> Option<&mut T> {
        self.pages.get_mut(id.0 as usize / PAGE)?.rows.get_mut(id.0 as usize % PAGE)?.as_mut()
    }

    /// Puts in a row, and returns the one that was there.
    pub fn insert(&mut self, id: ClaimId, row: T) -> Option<T> {
        let (page, place) = (id.0 as usize / PAGE, id.0 as usize % PAGE);
        if self.pages.len() <= page {
            self.turn_to(page);
        }
        let page = &mut self.pages[page];
        if page.rows.capacity() == 0 {
            page.rows.reserve_exact(PAGE);
        }
        let before = if page.rows.len() <= place {
            // Not by `replace`, which would read memory that was never written: the kernel maps such a page twice.
            page.rows.resize_with(place, || None);
            page.rows.push(Some(row));
            None
        } else {
            page.rows[place].replace(row)
        };
        page.len += usize::from(before.is_none());
        self.len += usize::from(before.is_none());
        before
    }

    /// The next numbers go to this page.
    fn turn_to(&mut self, page: usize) {
        if let Some(last) = self.pages.last_mut()
            && last.len == 0
        {
            *last = Page::default();
        }
        self.pages.resize_with(page + 1, Page::default);
    }

    pub fn remove(&mut self, id: ClaimId) -> Option<T> {
        let number = id.0 as usize / PAGE;
        let is_last = number + 1 == self.pages.len();
        let page = self.pages.get_mut(number)?;
        let before = page.rows.get_mut(id.0 as usize % PAGE)?.take()?;
        page.len -= 1;
        self.len -= 1;
        if page.len == 0 && !is_last {
            *page = Page::default();
        }
        Some(before)
    }

    /// All rows in order of their numbers.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (ClaimId, &T)> {
        self.up_to(usize::MAX)
    }

    /// The rows whose numbers are lower, in order.
    pub fn before(&self, end: ClaimId) -> impl DoubleEndedIterator<Item = (ClaimId, &T)> {
        self.up_to(end.0 as usize)
    }

    fn up_to(&self, end: usize) -> impl DoubleEndedIterator<Item = (ClaimId, &T)> {
        let pages = &self.pages[..end.div_ceil(PAGE).min(self.pages.len())];
        pages.iter().enumerate().flat_map(move |(page, of_page)| {
            let row = move |(place, row)| Some((ClaimId((page * PAGE + place) as u32), Option::as_ref(row)?));
            let rows = of_page.rows.len().min(end - page * PAGE);
            of_page.rows[..rows].iter().enumerate().filter_map(row)
        })
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Two tables are equal if their rows are, however they came about.
impl<T: PartialEq> PartialEq for Table<T> {
    fn eq(&self, other: &Table<T>) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl<T> FromIterator<(ClaimId, T)> for Table<T> {
    fn from_iter<I: IntoIterator<Item = (ClaimId, T)>>(rows: I) -> Table<T> {
        let mut table = Table::default();
        for (id, row) in rows {
            table.insert(id, row);
        }
        table
    }
}

impl<T> std::ops::Index<ClaimId> for Table<T> {
    type Output = T;

    #[inline]
    fn index(&self, id: ClaimId) -> &T {
        self.get(id).unwrap_or_else(|| unknown(id))
    }
}

impl<T> std::ops::IndexMut<ClaimId> for Table<T> {
    #[inline]
    fn index_mut(&mut self, id: ClaimId) -> &mut T {
        self.get_mut(id).unwrap_or_else(|| unknown(id))
    }
}

#[cold]
fn unknown(id: ClaimId) -> ! {
    panic!("job {id} is not in the table: its number was never given out, or it was forgotten")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(ids: impl IntoIterator<Item = u32>) -> Table<u32> {
        ids.into_iter().map(|id| (ClaimId(id), id * 10)).collect()
    }

    #[test]
    fn rows_are_found_by_their_numbers_and_listed_in_order() {
        let mut table = of([0, 1, 63, 64, 1000]);
        assert_eq!(table.get(ClaimId(63)), Some(&630));
        assert_eq!(table.get(ClaimId(65)), None);
        assert_eq!(table.get(ClaimId(u32::MAX)), None);
        table[ClaimId(64)] = 1;
        assert_eq!(table.insert(ClaimId(1), 2), Some(10));
        let rows: Vec<_> = table.iter().map(|(id, row)| (id.0, *row)).collect();
        assert_eq!(rows, [(0, 0), (1, 2), (63, 630), (64, 1), (1000, 10_000)]);
        assert_eq!(table.len(), 5);
    }

    #[test]
    fn rows_before_a_number_are_those_that_are_lower_from_either_end() {
        let page = PAGE as u32;
        let ids = [0, 5, page - 1, page, page + 3, 4 * page];
        let table = of(ids);
        for end in [0, 1, 5, 6, page - 1, page, page + 1, 2 * page, 4 * page, 4 * page + 1, u32::MAX] {
            let lower: Vec<u32> = ids.into_iter().filter(|id| *id < end).collect();
            let found: Vec<u32> = table.before(ClaimId(end)).map(|(id, _)| id.0).collect();
            assert_eq!(found, lower, "before {end}");
            let backwards: Vec<u32> = table.before(ClaimId(end)).rev().map(|(id, _)| id.0).collect();
            assert_eq!(backwards, lower.into_iter().rev().collect::<Vec<_>>(), "before {end}, backwards");
        }
    }

    fn pages_in_use(table: &Table<u32>) -> Vec<usize> {
        let in_use = table.pages.iter().enumerate().filter(|(_, page)| page.rows.capacity() > 0);
        in_use.map(|(number, _)| number).collect()
    }

    #[test]
    fn a_page_is_given_back_with_its_last_row() {
        let page = PAGE as u32;
        let (kept, end) = (page + 6, 2 * page + 2);
        let mut table = of(0..end);
        for id in (0..end).filter(|id| *id != kept) {
            assert_eq!(table.remove(ClaimId(id)), Some(id * 10));
        }
        assert_eq!(table.remove(ClaimId(3)), None, "it is forgotten already");
        assert_eq!(pages_in_use(&table), [1, 2], "the last one is where the next numbers go");
        assert_eq!(table, of([kept]));
        assert_ne!(table, of([kept + 1]));
        table.insert(ClaimId(3 * page), 0);
        assert_eq!(pages_in_use(&table), [1, 3]);
    }

    #[test]
    #[should_panic(expected = "job 7 is not in the table")]
    fn a_number_that_is_not_there_is_named() {
        let _ = of([6])[ClaimId(7)];
    }
}
