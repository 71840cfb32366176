//! PNG's row filters, undone in place.

/// Undoes filter `kind` of `row`, given the row above and the bytes of a whole pixel; `None` for a filter that
/// does not exist.
pub(super) fn undo(kind: u8, pixel: usize, above: &[u8], row: &mut [u8]) -> Option<()> {
    match kind {
        0 => {}
        2 => row.iter_mut().zip(above).for_each(|(byte, up)| *byte = byte.wrapping_add(*up)),
        1 | 3 | 4 => match pixel {
            1 => apply::<1>(kind, above, row),
            2 => apply::<2>(kind, above, row),
            3 => apply::<3>(kind, above, row),
            4 => apply::<4>(kind, above, row),
            6 => apply::<6>(kind, above, row),
            8 => apply::<8>(kind, above, row),
            _ => return None,
        },
        _ => return None,
    }
    Some(())
}

fn apply<const N: usize>(kind: u8, above: &[u8], row: &mut [u8]) {
    let (pixels, _) = row.as_chunks_mut::<N>();
    let (above, _) = above.as_chunks::<N>();
    match kind {
        1 => {
            let mut left = [0; N];
            for pixel in pixels {
                for i in 0..N {
                    pixel[i] = pixel[i].wrapping_add(left[i]);
                }
                left = *pixel;
            }
        }
        3 => {
            let mut left = [0; N];
            for (pixel, up) in pixels.iter_mut().zip(above) {
                for i in 0..N {
                    // The mean rounded down, without a ninth bit.
                    let mean = (left[i] & up[i]) + ((left[i] ^ up[i]) >> 1);
                    pixel[i] = pixel[i].wrapping_add(mean);
                }
                left = *pixel;
            }
        }
        _ => {
            let (mut left, mut corner) = ([0i16; N], [0i16; N]);
            for (pixel, up) in pixels.iter_mut().zip(above) {
                for i in 0..N {
                    let up = i16::from(up[i]);
                    let (dx, dy) = (up - corner[i], left[i] - corner[i]);
                    let (a, b, c) = (dx.abs(), dy.abs(), (dx + dy).abs());
                    // Ties go to the left, then to the row above.
                    let near = if b <= c { up } else { corner[i] };
                    let near = if a <= b && a <= c { left[i] } else { near };
                    pixel[i] = pixel[i].wrapping_add(near as u8);
                    left[i] = i16::from(pixel[i]);
                    corner[i] = up;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definitions of the PNG specification, byte by byte.
    fn reference(kind: u8, pixel: usize, above: &[u8], row: &mut [u8]) {
        for i in 0..row.len() {
            let at = |line: &[u8], k: Option<usize>| k.map_or(0, |k| i32::from(line[k]));
            let (a, b, c) =
                (at(row, i.checked_sub(pixel)), i32::from(above[i]), at(above, i.checked_sub(pixel)));
            let p = a + b - c;
            let paeth = [a, b, c].into_iter().min_by_key(|v| (p - v).abs()).unwrap_or(0);
            let add = [0, a, b, (a + b) / 2, paeth][usize::from(kind)];
            row[i] = row[i].wrapping_add(add as u8);
        }
    }

    #[test]
    fn each_filter_as_specified() {
        let mut state = 1u32;
        let mut noise = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        for pixel in [1, 2, 3, 4, 6, 8] {
            for kind in 0..5 {
                for columns in [1, 2, 3, 7, 64] {
                    let above: Vec<u8> = (0..columns * pixel).map(|_| noise()).collect();
                    let mut row: Vec<u8> = (0..columns * pixel).map(|_| noise()).collect();
                    let mut expected = row.clone();
                    reference(kind, pixel, &above, &mut expected);
                    undo(kind, pixel, &above, &mut row).expect("a filter that exists");
                    assert_eq!(row, expected, "filter {kind}, {pixel} bytes, {columns} columns");
                }
            }
        }
        assert!(undo(5, 1, &[0], &mut [0]).is_none());
    }
}
