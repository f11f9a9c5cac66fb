// Package nodes is `trivet nodes`: how healthy the Nodes of a cluster are, as the replicas of leasesvc believe that judge them.
//
// What is not well, and makes the exit code 1, is a Node that says it is not ready, is silent, or was declared. A suspect one may
// beat the next moment, and one that starts has time left. How lists and watches go is told in package listing.
package nodes
