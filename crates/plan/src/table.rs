//! A table by number, for numbers that are given out in order: some may be passed over, and what is forgotten gives its
//! memory back. Rows lie in small pages, so that looking one up costs hardly more than in a vector.

use cluster::ClaimId;

/// Rows on a page. A page is given back when its last row is forgotten.
const PAGE: usize = 64;

#[derive(Debug, Clone)]
pub struct Table<T> {
    /// An empty page takes no room.
    pages: Vec<Vec<Option<T>>>,
    len: usize,
}

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table { pages: Vec::new(), len: 0 }
    }
}

impl<T> Table<T> {
    #[inline]
    pub fn get(&self, id: ClaimId) -> Option<&T> {
        self.pages.get(id.0 as usize / PAGE)?.get(id.0 as usize % PAGE)?.as_ref()
    }

    #[inline]
    pub fn get_mut(&mut self, id: ClaimId) -> Option<&mut T> {
        self.pages.get_mut(id.0 as usize / PAGE)?.get_mut(id.0 as usize % PAGE)?.as_mut()
    }

    /// Puts in a row, and returns the one that was there.
    pub fn insert(&mut self, id: ClaimId, row: T) -> Option<T> {
        let (page, place) = (id.0 as usize / PAGE, id.0 as usize % PAGE);
        if self.pages.len() <= page {
            self.pages.resize_with(page + 1, Vec::new);
        }
        let page = &mut self.pages[page];
        if page.capacity() == 0 {
            page.reserve_exact(PAGE);
        }
        if page.len() <= place {
            page.resize_with(place + 1, || None);
        }
        let before = page[place].replace(row);
        self.len += usize::from(before.is_none());
        before
    }

    pub fn remove(&mut self, id: ClaimId) -> Option<T> {
        let page = self.pages.get_mut(id.0 as usize / PAGE)?;
        let before = page.get_mut(id.0 as usize % PAGE)?.take()?;
        self.len -= 1;
        if page.iter().all(Option::is_none) {
            *page = Vec::new();
        }
        Some(before)
    }

    /// All rows in order of their numbers.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (ClaimId, &T)> {
        self.pages.iter().enumerate().flat_map(|(page, rows)| {
            let row = move |(place, row)| Some((ClaimId((page * PAGE + place) as u32), Option::as_ref(row)?));
            rows.iter().enumerate().filter_map(row)
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
    fn a_page_is_given_back_with_its_last_row() {
        let mut table = of(0..130);
        for id in (0..130).filter(|id| *id != 70) {
            assert_eq!(table.remove(ClaimId(id)), Some(id * 10));
        }
        assert_eq!(table.remove(ClaimId(3)), None, "it is forgotten already");
        assert_eq!(table.pages.iter().filter(|page| page.capacity() > 0).count(), 1);
        assert_eq!(table, of([70]));
        assert_ne!(table, of([71]));
    }

    #[test]
    #[should_panic(expected = "job 7 is not in the table")]
    fn a_number_that_is_not_there_is_named() {
        let _ = of([6])[ClaimId(7)];
    }
}
