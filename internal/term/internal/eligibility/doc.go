// Package eligibility decides whether a replica counts as able to do the work of its shards.
//
// Checks flicker, and a shard that moves costs a moment in which nobody works on it. So what a replica's checks say now is one
// thing and how it stands with the others another:
//
//   - A replica that starts is [Unproven] until its checks pass for the first time; then it is [Ready] at once.
//   - One whose checks fail for a session's TTL is no longer ready: it is given nothing more, and keeps what it has.
//   - Only after twice that time is it [Failing], and gives its shards to those who are ready. The time between is for the
//     others to find out that they fail, too: when all depend on the same dead server, all have said so before the first of
//     them would give anything away, and then nothing moves.
//   - It is ready again once its checks have passed for twice the TTL without a break.
//   - One that has given shards away stays behind the others for twelve TTLs, and twice as long after each further time, up
//     to a hundred and twenty. What it failed at may show only while it holds a shard, and then passing checks prove nothing:
//     it would get its shards back, fail again and so on for ever. The count begins anew after it has been ready for the
//     longest such time.
//
// It is pure: time is a parameter, and a [Standing] is a value. At the default TTL of five seconds the times are five seconds,
// ten seconds, ten seconds, and one to ten minutes.
package eligibility
