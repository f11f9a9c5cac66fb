// Package kube fills a sink with the Services, pods, nodes and EndpointSlices
// of a cluster and keeps it filled.
//
// Promise: every object is put before Synced is closed, and every later change
// follows in the order of its kind; of each object only the fields that slices
// are made from are kept. What was deleted while a watch was interrupted is
// deleted when the watch goes on, as an object that has nothing but its names and
// its last known version. A kube-apiserver that cannot be reached is asked again
// and again, by client-go's pace, and Check says why nothing arrives.
//
// Cost: with the clients of Slim an object is decoded only as far as it is used,
// and a slice that the sink knows already no further than its metadata. Nothing
// is kept here but the names and versions of what was put.
//
// What it does not do: it keeps no order between kinds, it merges states of one
// object that follow each other quickly, and it decides nothing.
package kube
