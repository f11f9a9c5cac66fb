// Package pace decides how many writes may be under way at a time, from how the last ones went.
//
// Promise: the number follows what the kube-apiserver can bear. It is halved when that throttles or slows down, and again for as
// long as fewer writes make it quicker; a kube-apiserver that is slow for other reasons gets as many writes as before, for Leases
// lapse meanwhile. It grows by one with each Window in which all was well and the number was used up; below half of what was last too many it doubles
// instead. While nothing gets through at all it is the least there is, with a pause between tries that doubles to five seconds, and
// the first success ends it. It never leaves its bounds.
//
// It decides and does nothing: observations come in, a Pace goes out. It reads no clock.
package pace
