// Package leases is `trivet leases`: the sessions of the holders that beat at leasesvc, and how their Lease objects stand.
//
// What is not well, and makes the exit code 1, is a session that expired, one whose name another live holder beats under, and one
// whose object could not be written [failing] times running. A suspect one may beat the next moment; an object whose Node does not
// exist is not to be written. How lists and watches go is told in package listing.
package leases
