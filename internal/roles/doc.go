// Package roles gives the servers of a cluster the rights that deploy/ ships: it applies the roles
// of the manifests, and no other object of them.
//
// `trivet-lab up` and tests run each server with these rights, so that a right that is missing in
// deploy/ shows.
package roles
