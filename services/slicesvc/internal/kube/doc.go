// Package kube watches, reads and writes the Kubernetes objects of slicesvc. It decides nothing.
//
// Watches: every object is passed to the Handler before Synced is closed. Later changes follow in
// order, per kind; several states of one object may be merged into the last one. An object is
// stripped to the fields that slices are made from. After an interruption, an object that is gone
// is deleted with only its names, UID and last resourceVersion known. client-go paces the retries,
// and Check returns the cause of a delay.
//
// A stream reopens the watch of a kind that is silent or late, and continues after its last event.
// CurrentVersions and Await prove that the Handler has everything that the cluster had at a moment:
// by an event or bookmark of that version, or by a list that shows nothing new. A late kind delays
// only the caller of Await.
//
// Endpoints are watched only after WatchEndpoints. Only their metadata is decoded, unless the
// handler asks for the object. Warnings about their deprecation are not logged.
//
// Writes: an update carries the resourceVersion, and a deletion also the UID, of the slice that it
// was planned from; a creation names its slice. A deletion of a slice without a resourceVersion
// carries the UID alone. So a plan from an older state fails with
// ErrConflict. No write is repeated here. The transport of the client refuses writes outside of a
// held term.
//
// Cost: the decoder decodes only the used fields of a Pod or Node, and only the metadata of a slice
// that the Handler already knows. Of the answer of a write only the metadata is decoded if the
// endpoints and ports are those that were sent. Nothing is requested in compressed form, because
// compression costs kube-apiserver about as much as encoding.
//
// The generated clientset of client-go would register every kind of Kubernetes and cost more memory
// than thousands of Pods. A test checks that slicesvc does not depend on it. trivet-server links it
// for leasesvc and bootstrapsvc.
package kube
