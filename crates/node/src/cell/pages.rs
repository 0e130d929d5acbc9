//! A growing array in pages of one size.
//!
//! Hundreds of arrays that double and move leave holes of every size, and the process then takes half as much
//! memory again as it uses. A freed page fits wherever a page is needed.

use std::ops::{Index, IndexMut};

/// Items in pages of `ITEMS`, a power of two. Only a page that is the only one may have fewer.
#[derive(Debug)]
pub(crate) struct Pages<T, const ITEMS: usize> {
    pages: Vec<Vec<T>>,
    len: usize,
}

impl<T, const ITEMS: usize> Default for Pages<T, ITEMS> {
    fn default() -> Self {
        Self { pages: Vec::new(), len: 0 }
    }
}

impl<T, const ITEMS: usize> Pages<T, ITEMS> {
    /// The largest length up to `len` with whole pages only, except for a single first page.
    pub(crate) const fn whole(len: usize) -> usize {
        if len <= ITEMS { len } else { len - len % ITEMS }
    }

    #[inline]
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Adds one item.
    pub(crate) fn push(&mut self, item: T) {
        if self.len.is_multiple_of(ITEMS) {
            self.pages.push(if self.len == 0 { Vec::new() } else { Vec::with_capacity(ITEMS) });
        }
        let page = &mut self.pages[self.len / ITEMS];
        if page.len() == page.capacity() {
            // A first page grows with its items: most arrays stay small.
            page.reserve_exact(ITEMS / 8);
        }
        page.push(item);
        self.len += 1;
    }

    /// Bytes that are allocated for items.
    pub(crate) fn bytes(&self) -> usize {
        match &self.pages[..] {
            [] => 0,
            [only] => only.capacity() * size_of::<T>(),
            pages => pages.len() * ITEMS * size_of::<T>(),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.pages.iter().flatten()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.pages.iter_mut().flatten()
    }
}

impl<T: Copy, const ITEMS: usize> Pages<T, ITEMS> {
    /// `len` copies of one item. `len` must be [`Pages::whole`].
    pub(crate) fn filled(item: T, len: usize) -> Self {
        let first = vec![item; len.min(ITEMS)];
        let others = (1..len / ITEMS).map(|_| vec![item; ITEMS]);
        let pages = std::iter::once(first).filter(|first| !first.is_empty()).chain(others).collect();
        Self { pages, len }
    }
}

impl<T, const ITEMS: usize> IntoIterator for Pages<T, ITEMS> {
    type Item = T;
    type IntoIter = std::iter::Flatten<std::vec::IntoIter<Vec<T>>>;

    /// Frees each page once its items are taken.
    fn into_iter(self) -> Self::IntoIter {
        self.pages.into_iter().flatten()
    }
}

impl<T, const ITEMS: usize> Index<usize> for Pages<T, ITEMS> {
    type Output = T;

    #[inline]
    fn index(&self, at: usize) -> &T {
        &self.pages[at / ITEMS][at % ITEMS]
    }
}

impl<T, const ITEMS: usize> IndexMut<usize> for Pages<T, ITEMS> {
    #[inline]
    fn index_mut(&mut self, at: usize) -> &mut T {
        &mut self.pages[at / ITEMS][at % ITEMS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_return_each_item_at_its_index() {
        let mut pages = Pages::<u64, 8>::default();
        for item in 0..19 {
            assert_eq!(pages.len(), item as usize);
            pages.push(item);
        }
        pages[9] += 100;
        pages.iter_mut().for_each(|item| *item += 1);
        assert_eq!((pages[7], pages[8], pages[9], pages[18]), (8, 9, 110, 19));
        assert_eq!(pages.bytes(), 3 * 8 * 8);
        assert_eq!(pages.iter().count(), 19);
        assert_eq!(pages.into_iter().sum::<u64>(), 190 + 100);
    }

    #[test]
    fn filled_pages_have_the_given_length_and_no_spare_room() {
        for len in [0, 1, 3, 4, 8, 40] {
            let pages = Pages::<u32, 4>::filled(7, len);
            assert_eq!((pages.len(), pages.iter().filter(|item| **item == 7).count()), (len, len));
            assert_eq!(pages.bytes(), len * 4);
        }
        assert_eq!([0, 3, 4, 5, 11, 12].map(Pages::<u32, 4>::whole), [0, 3, 4, 4, 8, 12]);
    }
}
