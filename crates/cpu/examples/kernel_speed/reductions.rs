//! Reductions, and the sums of norms.

use crate::{aligned, random, space, time};
use plimsoll_cpu::isa::Context;
use plimsoll_cpu::kernels::norm::{
    NormAxis, Normalised, channel_stats, channel_stats_workspace, channel_sums, channel_sums_workspace,
    row_stats, row_sums,
};
use plimsoll_cpu::kernels::reduce::{
    Extreme, Term, arg_extreme, cumulative_sum, extreme, product, sum, sum_fold, sum_fold_workspace, top_k,
};

pub fn reductions(ctx: Context<'_>) {
    for (outer, reduce, inner) in [(16384, 1024, 1), (64, 256, 512)] {
        let (x, mut y) = (random(outer * reduce * inner), vec![0.0; outer * inner]);
        time(&format!("sum [{outer},{reduce},{inner}]"), 4 * x.len(), || {
            sum(ctx, Term::Itself, [outer, reduce, inner], &x, &mut y)
        });
    }
    for (outer, reduce, inner) in [(16384, 1024, 1), (64, 256, 512), (1, 1 << 20, 4)] {
        let (x, mut y) = (random(outer * reduce * inner), vec![0.0; outer * inner]);
        let (name, mut all) = (format!("[{outer},{reduce},{inner}]"), vec![0.0; x.len()]);
        time(&format!("max {name}"), 4 * x.len(), || {
            extreme(ctx, Extreme::Largest, outer, reduce, inner, &x, &mut y)
        });
        time(&format!("product {name}"), 4 * x.len(), || product(ctx, outer, reduce, inner, &x, &mut y));
        time(&format!("cumulative_sum {name}"), 8 * x.len(), || {
            cumulative_sum(ctx, outer, reduce, inner, false, &x, &mut all)
        });
    }
    let (x, mut values, mut places) = (random(1 << 22), vec![0.0; 4096 * 50], vec![0; 4096 * 50]);
    time("top 50 of [4096,1024]", 4 * x.len(), || top_k(ctx, 4096, 1024, 50, &x, &mut values, &mut places));
    for (rows, inner, block) in [(131_072, 16, 4096), (65536, 128, 256), (8192, 2048, 64), (1 << 20, 10, 32)]
    {
        let (x, mut y) = (random(rows * inner), vec![0.0; inner]);
        let mut memory = space(sum_fold_workspace(rows, inner, block));
        let memory = aligned(&mut memory);
        let name = format!("sum_fold [{rows},{inner}] by {block}");
        time(&name, 4 * x.len(), || sum_fold(ctx, rows, inner, block, false, &x, &mut y, memory));
    }
    let (x, mut y) = (random(1 << 22), vec![0; 1 << 22]);
    time("argmax [419430,10]", 4 * x.len(), || arg_extreme(ctx, Extreme::Largest, 419_430, 10, &x, &mut y));
    time("argmax [4096,1024]", 4 * x.len(), || arg_extreme(ctx, Extreme::Largest, 4096, 1024, &x, &mut y));
}

pub fn norms(ctx: Context<'_>) {
    for (rows, width) in [(16384, 768), (131_072, 64)] {
        let (x, dy) = (random(rows * width), random(rows * width));
        let (mut a, mut b) = (vec![0.0; rows], vec![0.0; rows]);
        time(&format!("row_stats [{rows},{width}]"), 4 * x.len(), || {
            row_stats(ctx, rows, width, &x, &mut a, &mut b)
        });
        let (mean, rstd) = (random(rows), random(rows));
        let hat = Normalised { x: &x, axis: NormAxis::Row, mean: &mean, rstd: &rstd };
        time(&format!("row_sums [{rows},{width}]"), 8 * x.len(), || {
            row_sums(ctx, rows, width, &dy, hat, &mut a, &mut b)
        });
        let mut memory = space(channel_sums_workspace(rows, width, 256));
        let memory = aligned(&mut memory);
        let name = format!("channel_sums of row statistics [{rows},{width}]");
        let (mut a, mut b) = (vec![0.0; width], vec![0.0; width]);
        time(&name, 8 * x.len(), || {
            channel_sums(ctx, rows, width, 256, false, &dy, hat, &mut a, &mut b, memory)
        });
    }
    for (rows, channels) in [(131_072, 16), (131_072, 64)] {
        let (x, dy) = (random(rows * channels), random(rows * channels));
        let (mut a, mut b) = (vec![0.0; channels], vec![0.0; channels]);
        let mut memory = space(channel_stats_workspace(rows, channels, rows));
        let memory = aligned(&mut memory);
        let name = format!("channel_stats [{rows},{channels}]");
        time(&name, 4 * x.len(), || channel_stats(ctx, rows, channels, rows, &x, &mut a, &mut b, memory));
        let (mean, rstd) = (random(channels), random(channels));
        let hat = Normalised { x: &x, axis: NormAxis::Channel, mean: &mean, rstd: &rstd };
        let mut memory = space(channel_sums_workspace(rows, channels, 4096));
        let memory = aligned(&mut memory);
        let name = format!("channel_sums [{rows},{channels}]");
        time(&name, 8 * x.len(), || {
            channel_sums(ctx, rows, channels, 4096, false, &dy, hat, &mut a, &mut b, memory)
        });
    }
}
