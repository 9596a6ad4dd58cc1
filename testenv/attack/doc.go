// Package attack plays an attacker who owns the registry, a mirror of it, or the network between, and can do with
// it what such a person can. Its tests do so to real devices and hold that each attack is refused, told, and touches
// nothing that runs.
//
// A Proxy stands before a real registry and is honest until it is given rules. Rules are those of [testenv.Faults]; the
// effects here are what an attacker does beyond breaking things: replay, mix, withhold one of many, drip, flood, lie. They
// are small values that can be put together: several rules at once, and each for some requests only.
//
// docs/threat-model.md lists the attacks by name; a test holds that list against what is played here.
package attack
