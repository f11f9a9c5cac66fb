// Package index keeps Services, pods, nodes and EndpointSlices by what joins
// them, so that a change of one costs what it touches and not what exists.
//
// Promise: Put and Delete of an object name the Services whose endpoints or
// slices may have changed; Observed gives everything a plan for one Service is
// made from.
//
//   - A pod finds its Services by an inverted selector index: each Service is
//     filed under one pair of its selector, the one fewest Services of the
//     namespace are filed under, and a pod looks up its own label pairs.
//   - A Service knows its pods at any time; a new one finds them through the
//     rarest pair of its selector.
//   - A node finds the pods bound to it, and through them the Services whose
//     endpoints wait for it or carry its zone.
//   - A shard knows its Services and its sizes, so that to begin with a shard
//     costs what is in it. The Index itself always holds all shards.
//
// Invariants: no I/O, no clock; objects are kept as given and never changed, and
// of a pod what endpoints are made from;
// the result of any sequence of calls depends only on the objects last put, not
// on the order in which they came. An Index is not safe for concurrent writing;
// readers may share it while nobody writes.
//
// What it does not do: it decides nothing about endpoints, and it does not judge
// whether what it holds is fresh.
package index
