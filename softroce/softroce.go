// Package softroce is the embedded device: RoCEv2 in pure Go over an ordinary UDP
// socket, wire compatible with Linux Soft-RoCE and NICs.
package softroce
