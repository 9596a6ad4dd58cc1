// Package intake brings what a tag points at to a state that the device may be kept at: it resolves the tag, fetches, verifies
// and admits the state, pins and verifies what the state names, translates the Compose files, and follows the trust policy.
//
// It decides nothing about containers and writes nothing to the agent's store but what a trust policy says of generations.
// What it fetched and verified stays in the device's [Content].
package intake
