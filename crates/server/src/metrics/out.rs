//! Writes metrics: their names, help texts, labels and values.

use std::{collections::BTreeMap, fmt};

use acequia_node::Active;
use prometheus_client::{
    encoding::{DescriptorEncoder, EncodeGaugeValue, MetricEncoder},
    metrics::MetricType,
    registry::Unit,
};

use crate::histogram::Histogram;

/// Where metrics are written to.
pub(super) struct Out<'a>(pub(super) DescriptorEncoder<'a>);

/// A gauge of each of several things, such as peers.
pub(super) struct GaugeOf<T, V> {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    /// Reads the gauge's value, if the thing has one.
    pub(super) value: fn(&T) -> Option<V>,
}

impl Out<'_> {
    fn begin<'s>(
        &'s mut self,
        name: &'s str,
        help: &str,
        unit: Option<&'s Unit>,
        kind: MetricType,
    ) -> Result<MetricEncoder<'s>, fmt::Error> {
        self.0.encode_descriptor(name, help, unit, kind)
    }

    /// Text about the process, as labels.
    pub(super) fn info<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        labels: [(&str, &str); N],
    ) -> fmt::Result {
        self.infos(name, help, [labels])
    }

    /// Text about each of several things, as labels.
    pub(super) fn infos<'l, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        all: impl IntoIterator<Item = [(&'l str, &'l str); N]>,
    ) -> fmt::Result {
        let mut metric = self.begin(name, help, None, MetricType::Info)?;
        for labels in all {
            metric.encode_info(&labels)?;
        }
        Ok(())
    }

    /// A counter without labels.
    pub(super) fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let mut metric = self.begin(name, help, None, MetricType::Counter)?;
        metric.encode_counter::<NoExemplar, _, u64>(&value, None)
    }

    /// A counter for each set of labels.
    pub(super) fn counters<'l, L: AsRef<[(&'l str, &'l str)]>>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let mut metric = self.begin(name, help, None, MetricType::Counter)?;
        for (labels, value) in values {
            metric.encode_family(&labels.as_ref())?.encode_counter::<NoExemplar, _, u64>(&value, None)?;
        }
        Ok(())
    }

    /// A number for each set of labels, under a name that is not ours and says nothing of its kind.
    pub(super) fn foreign<'l>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Vec<(&'l str, &'l str)>, u64)>,
    ) -> fmt::Result {
        let mut metric = self.begin(name, help, None, MetricType::Unknown)?;
        for (labels, value) in values {
            metric.encode_family(&labels.as_slice())?.encode_gauge(&signed(value))?;
        }
        Ok(())
    }

    /// Seconds that add up.
    pub(super) fn seconds_total(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        let mut metric = self.begin(name, help, Some(&Unit::Seconds), MetricType::Counter)?;
        metric.encode_counter::<NoExemplar, _, u64>(&value, None)
    }

    /// A gauge without labels.
    pub(super) fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.begin(name, help, None, MetricType::Gauge)?.encode_gauge(&signed(value))
    }

    /// A gauge in a unit.
    pub(super) fn measured(
        &mut self,
        name: &str,
        help: &str,
        unit: Unit,
        value: impl EncodeGaugeValue,
    ) -> fmt::Result {
        self.begin(name, help, Some(&unit), MetricType::Gauge)?.encode_gauge(&value)
    }

    /// A gauge for each set of labels.
    pub(super) fn gauges<'l, L: AsRef<[(&'l str, &'l str)]>>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        self.gauges_in(name, help, None, values.into_iter().map(|(labels, value)| (labels, signed(value))))
    }

    /// A gauge in a unit, for each set of labels.
    pub(super) fn gauges_in<'l, L: AsRef<[(&'l str, &'l str)]>, V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        values: impl IntoIterator<Item = (L, V)>,
    ) -> fmt::Result {
        let mut metric = self.begin(name, help, unit, MetricType::Gauge)?;
        for (labels, value) in values {
            metric.encode_family(&labels.as_ref())?.encode_gauge(&value)?;
        }
        Ok(())
    }

    /// A gauge for each of several named things, without those that have no value.
    pub(super) fn gauge_of_each<T, V: EncodeGaugeValue>(
        &mut self,
        gauge: &GaugeOf<T, V>,
        unit: Option<&Unit>,
        label: &str,
        all: &[(&str, &T)],
    ) -> fmt::Result {
        let values = all.iter().filter_map(|(named, one)| Some(([(label, *named)], (gauge.value)(one)?)));
        self.gauges_in(gauge.name, gauge.help, unit, values)
    }

    /// A histogram of seconds, without labels.
    pub(super) fn histogram<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        bounds: &[f64; N],
        counts: &Histogram<N>,
    ) -> fmt::Result {
        let mut metric = self.begin(name, help, Some(&Unit::Seconds), MetricType::Histogram)?;
        encode_histogram(&mut metric, bounds, counts)
    }

    /// A histogram of seconds for each set of labels.
    pub(super) fn histograms<'l, const N: usize, L: AsRef<[(&'l str, &'l str)]>>(
        &mut self,
        name: &str,
        help: &str,
        bounds: &[f64; N],
        all: impl IntoIterator<Item = (L, Histogram<N>)>,
    ) -> fmt::Result {
        let mut metric = self.begin(name, help, Some(&Unit::Seconds), MetricType::Histogram)?;
        for (labels, counts) in all {
            encode_histogram(&mut metric.encode_family(&labels.as_ref())?, bounds, &counts)?;
        }
        Ok(())
    }
}

fn encode_histogram<const N: usize>(
    metric: &mut MetricEncoder<'_>,
    bounds: &[f64; N],
    counts: &Histogram<N>,
) -> fmt::Result {
    let mut buckets: Vec<(f64, u64)> = bounds.iter().copied().zip(counts.buckets).collect();
    buckets.push((f64::INFINITY, counts.above));
    let count = buckets.iter().map(|(_, count)| count).sum();
    metric.encode_histogram::<NoExemplar>(counts.sum, count, &buckets, None)
}

/// Values of each limit, by its path. A limit and its successor have one path.
pub(super) fn by_path<'a, const N: usize>(
    limits: impl IntoIterator<Item = &'a Active>,
    numbers: impl Fn(&Active) -> Option<[u64; N]>,
) -> BTreeMap<String, [u64; N]> {
    let mut all = BTreeMap::new();
    for active in limits {
        let Some(numbers) = numbers(active) else { continue };
        let sums = all.entry(active.limit.path()).or_insert([0_u64; N]);
        for (sum, number) in sums.iter_mut().zip(numbers) {
            *sum = sum.saturating_add(number);
        }
    }
    all
}

/// One value of each limit, under the label `limit`.
pub(super) fn labelled(
    by_path: &BTreeMap<String, [u64; 1]>,
) -> impl Iterator<Item = ([(&str, &str); 1], u64)> {
    by_path.iter().map(|(path, [value])| ([("limit", path.as_str())], *value))
}

/// Gauges are signed in OpenMetrics. The values here are below 2^53, or mean "no bound".
pub(super) fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// No exemplars: they would show values that labels must not show.
type NoExemplar = Vec<(String, String)>;
