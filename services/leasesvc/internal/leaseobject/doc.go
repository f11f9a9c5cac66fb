// Package leaseobject writes the Lease objects of holders, field by field as upstream's lease client does
// (k8s.io/component-helpers/apimachinery/lease, v0.37.1), and more carefully where that client trusts its luck.
//
// Promise:
//   - A Lease is created with an owner reference to its Node, UID included, or not at all. One that is found without such an
//     owner gets it with the next renewal. Where upstream renews an ownerless Lease, this package never leaves one behind.
//   - A Lease is not created for a Node that is gone: after a Lease has vanished the kube-apiserver is asked, not the cache.
//   - renewTime never goes backwards, whatever the clocks of this and of earlier writers say: it advances by a microsecond at
//     least, because readers take any advance for a sign of life.
//   - A renewal is one PUT of the Lease as last seen, guarded by its resourceVersion. It sets renewTime and
//     leaseDurationSeconds, and holderIdentity only where there is none. Everything else in the object stays as it is.
//   - The Lease of a holder that is no Node is created with ClassLabel instead of an owner.
//   - An expired holder's Lease is made to read as lapsed, once, and gets no later renewTime than its holder was heard.
//   - A Lease that names another holder is left alone.
//   - A Lease is deleted only if this service was the last to renew it, as the kube-apiserver recorded, and guarded by the UID and
//     the resourceVersion of that very state.
//
// A write that the kube-apiserver throttles fails at once and says so if its client was made by kubeconn.Prompt. The context given to each call must carry the held term, which the fenced client checks. The package keeps no state:
// callers pass in what the last call returned, a Known of 48 bytes that holds the whole object only if anybody else left something in it.
package leaseobject
