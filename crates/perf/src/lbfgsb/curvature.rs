//! What the last steps of a search tell about second derivatives.

#![allow(clippy::needless_range_loop, reason = "vectors and matrices are read by their indices")]

use std::ops::Range;

use super::{Place, Vector, dot};

/// Steps remembered.
const MEMORY: usize = 10;

/// The approximation of second derivatives: θ times unity, updated by the remembered steps in their order (BFGS), kept
/// as B = θ − W M Wᵀ with W = (Y, θS) and M the inverse of (−D, Lᵀ; L, θSᵀS), where SᵀY is split into its diagonal D,
/// the part L below and the part above. Written out, B would lose the gentle directions beside the steep ones.
#[derive(Debug, Clone)]
pub(super) struct Curvature<const N: usize> {
    len: usize,
    pub(super) scale: f64,
    /// S: the steps, a row for each variable, oldest step first.
    pub(super) moved: [Row; N],
    /// Y: how the gradient changed over them.
    pub(super) bent: [Row; N],
    /// SᵀY, up to the diagonal.
    moved_by_bent: Square,
    /// SᵀS, up to the diagonal.
    moved_by_moved: Square,
    /// The factor of θSᵀS + L D⁻¹ Lᵀ, by [`cholesky`].
    factor: Square,
}

/// A matrix with a row and a column for every remembered step.
type Square = [Row; MEMORY];
type Row = [f64; MEMORY];

/// A vector as W sees it: by the changes of the gradient, and by θ times the steps.
#[derive(Debug, Clone, Copy)]
pub(super) struct Halves {
    pub(super) bent: Row,
    pub(super) moved: Row,
}

impl Halves {
    pub(super) const ZERO: Halves = Halves { bent: [0.0; MEMORY], moved: [0.0; MEMORY] };

    pub(super) fn add(&mut self, factor: f64, other: &Halves) {
        add(&mut self.bent, factor, &other.bent);
        add(&mut self.moved, factor, &other.moved);
    }

    pub(super) fn dot(&self, other: &Halves) -> f64 {
        product(&self.bent, &other.bent) + product(&self.moved, &other.moved)
    }
}

impl<const N: usize> Curvature<N> {
    pub(super) fn new() -> Curvature<N> {
        Curvature {
            len: 0,
            scale: 1.0,
            moved: [[0.0; MEMORY]; N],
            bent: [[0.0; MEMORY]; N],
            moved_by_bent: [[0.0; MEMORY]; MEMORY],
            moved_by_moved: [[0.0; MEMORY]; MEMORY],
            factor: [[0.0; MEMORY]; MEMORY],
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn learn(&mut self, before: &Place<N>, after: &Place<N>, direction: &Vector<N>, step: f64) {
        let slope_before = dot(&before.gradient, direction);
        let product = (dot(&after.gradient, direction) - slope_before) * step;
        if product <= f64::EPSILON * (-slope_before * step) {
            return;
        }
        if self.len == MEMORY {
            self.forget_oldest();
        }
        let last = self.len;
        self.len += 1;
        let mut by_bent = [0.0; MEMORY];
        let mut by_moved = [0.0; MEMORY];
        let mut bent_squared = 0.0;
        for i in 0..N {
            let (moved, bent) = (step * direction[i], after.gradient[i] - before.gradient[i]);
            self.moved[i][last] = moved;
            self.bent[i][last] = bent;
            bent_squared += bent * bent;
            add(&mut by_bent, moved, &self.bent[i]);
            add(&mut by_moved, moved, &self.moved[i]);
        }
        self.scale = bent_squared / product;
        self.moved_by_bent[last] = by_bent;
        self.moved_by_moved[last] = by_moved;
        self.moved_by_bent[last][last] = product;
        self.moved_by_moved[last][last] = step * step * dot(direction, direction);
        if self.factorise().is_none() {
            *self = Curvature::new();
        }
    }

    fn forget_oldest(&mut self) {
        for row in self.moved.iter_mut().chain(&mut self.bent) {
            row.rotate_left(1);
        }
        for square in [&mut self.moved_by_bent, &mut self.moved_by_moved] {
            square.rotate_left(1);
            for row in square {
                row.rotate_left(1);
            }
        }
        self.len -= 1;
    }

    fn factorise(&mut self) -> Option<()> {
        for i in 0..self.len {
            let mut below = [0.0; MEMORY];
            for k in 0..i {
                below[k] = self.moved_by_bent[i][k] / self.moved_by_bent[k][k];
            }
            for j in 0..=i {
                let sum: f64 = (0..j).map(|k| below[k] * self.moved_by_bent[j][k]).sum();
                self.factor[i][j] = sum + self.scale * self.moved_by_moved[i][j];
            }
        }
        cholesky(&mut self.factor, self.len)
    }

    /// Wᵀ times a vector.
    pub(super) fn seen(&self, vector: &Vector<N>) -> Halves {
        let mut seen = Halves::ZERO;
        for i in 0..N {
            add(&mut seen.bent, vector[i], &self.bent[i]);
            add(&mut seen.moved, self.scale * vector[i], &self.moved[i]);
        }
        seen
    }

    /// A column of Wᵀ.
    pub(super) fn column(&self, i: usize) -> Halves {
        Halves { bent: self.bent[i], moved: self.moved[i].map(|moved| self.scale * moved) }
    }

    /// M times a vector, through the factors of its inverse.
    pub(super) fn middle(&self, vector: &Halves) -> Halves {
        let len = self.len;
        let mut product = *vector;
        for k in 0..len {
            product.bent[k] = vector.bent[k] / self.moved_by_bent[k][k];
        }
        for i in 1..len {
            product.moved[i] += (0..i).map(|k| self.moved_by_bent[i][k] * product.bent[k]).sum::<f64>();
        }
        forward(&self.factor, &mut product.moved, len);
        backward(&self.factor, &mut product.moved, len);
        for i in 0..len {
            let above: f64 = (i + 1..len).map(|k| self.moved_by_bent[k][i] * product.moved[k]).sum();
            product.bent[i] = above / self.moved_by_bent[i][i] - product.bent[i];
        }
        product
    }

    /// B⁻¹ times a vector, among the free variables only; none if rounding leaves no inverse.
    pub(super) fn solve(&self, right: &Vector<N>, free: &[bool; N], fixed: &[bool; N]) -> Option<Vector<N>> {
        let len = self.len;
        // The inverse of M less WᵀW / θ over the free variables is (−P, Q; Qᵀ, T).
        let mut p = [[0.0; MEMORY]; MEMORY];
        let mut q = [[0.0; MEMORY]; MEMORY];
        let mut t = [[0.0; MEMORY]; MEMORY];
        for i in 0..N {
            let (moved, bent) = (&self.moved[i], &self.bent[i]);
            for j in 0..len {
                if free[i] {
                    add(&mut p[j], bent[j] / self.scale, bent);
                    add_part(&mut q[j], -bent[j], moved, 0..j + 1);
                } else if !fixed[i] {
                    add(&mut t[j], moved[j] * self.scale, moved);
                    add_part(&mut q[j], bent[j], moved, j + 1..len);
                }
            }
        }
        for j in 0..len {
            p[j][j] += self.moved_by_bent[j][j];
        }
        cholesky(&mut p, len)?;
        forward_all(&p, &mut q, len);
        for row in &q[..len] {
            for i in 0..len {
                add(&mut t[i], row[i], row);
            }
        }
        cholesky(&mut t, len)?;

        let right: Vector<N> = std::array::from_fn(|i| if free[i] { right[i] } else { 0.0 });
        let Halves { mut bent, mut moved } = self.seen(&right);
        forward(&p, &mut bent, len);
        for k in 0..len {
            add(&mut moved, bent[k], &q[k]);
        }
        forward(&t, &mut moved, len);
        backward(&t, &mut moved, len);
        for k in 0..len {
            bent[k] = product(&q[k], &moved) - bent[k];
        }
        backward(&p, &mut bent, len);
        let solved = |i: usize| {
            (right[i] + product(&self.bent[i], &bent) / self.scale + product(&self.moved[i], &moved)) / self.scale
        };
        Some(std::array::from_fn(|i| if free[i] { solved(i) } else { 0.0 }))
    }
}

fn add(sum: &mut Row, factor: f64, row: &Row) {
    for (sum, entry) in sum.iter_mut().zip(row) {
        *sum += factor * entry;
    }
}

fn add_part(sum: &mut Row, factor: f64, row: &Row, part: Range<usize>) {
    for (sum, entry) in sum[part.clone()].iter_mut().zip(&row[part]) {
        *sum += factor * entry;
    }
}

pub(super) fn product(a: &Row, b: &Row) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Replaces the lower half of a positive matrix by its Cholesky factor, with the inverse of every number on the diagonal;
/// none if it is not positive.
fn cholesky(matrix: &mut Square, len: usize) -> Option<()> {
    for k in 0..len {
        if matrix[k][k].is_nan() || matrix[k][k] <= 0.0 {
            return None;
        }
        matrix[k][k] = 1.0 / matrix[k][k].sqrt();
        let mut column = [0.0; MEMORY];
        for i in k + 1..len {
            matrix[i][k] *= matrix[k][k];
            column[i] = matrix[i][k];
        }
        for i in k + 1..len {
            for j in k + 1..=i {
                matrix[i][j] -= column[i] * column[j];
            }
        }
    }
    Some(())
}

/// Solves with a Cholesky factor.
fn forward(factor: &Square, right: &mut Row, len: usize) {
    for i in 0..len {
        let known: f64 = (0..i).map(|k| factor[i][k] * right[k]).sum();
        right[i] = (right[i] - known) * factor[i][i];
    }
}

/// The same for every column of a matrix.
fn forward_all(factor: &Square, right: &mut Square, len: usize) {
    for i in 0..len {
        let (known, rest) = right.split_at_mut(i);
        for (k, row) in known.iter().enumerate() {
            for (entry, solved) in rest[0].iter_mut().zip(row) {
                *entry -= factor[i][k] * solved;
            }
        }
        for entry in &mut rest[0] {
            *entry *= factor[i][i];
        }
    }
}

/// Solves with the transposed Cholesky factor.
fn backward(factor: &Square, right: &mut Row, len: usize) {
    for i in (0..len).rev() {
        right[i] *= factor[i][i];
        for k in 0..i {
            right[k] -= factor[i][k] * right[i];
        }
    }
}
