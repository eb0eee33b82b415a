"""Makes the models of this folder and what fastText predicts with them: python3 make.py, with the package fasttext-wheel 0.9.2 and numpy 1."""
import json
import random

import fasttext

random.seed(3)
en="the quick brown fox jumps over lazy dog and then runs away into deep forest where nobody can find it while rain falls on old roof of small house".split()
de="der schnelle braune fuchs springt über den faulen hund und läuft dann in tiefen wald wo ihn niemand findet während regen auf das alte dach fällt".split()
fr="le rapide renard brun saute par dessus chien paresseux et puis il court dans la forêt profonde où personne ne peut trouver pendant que pluie tombe".split()
L={"en":en,"de":de,"fr":fr}
with open('train.txt','w') as f:
    for i in range(600):
        l=random.choices(list(L),weights=[5,3,2])[0]
        f.write("__label__%s %s\n"%(l,' '.join(random.choices(L[l],k=random.randint(3,12)))))
texts=["the dog runs","der hund läuft","le chien court dans","quick fuchs","unbekannt wörter überall","the the the xyz","über", "forêt forest Wald tiefen the", "zzz qqq", "x"]
gold=[]
for name,kw in {"softmax":dict(loss="softmax",minn=0,maxn=0,wordNgrams=1),"hs":dict(loss="hs",minn=2,maxn=4,wordNgrams=1),"ngrams":dict(loss="softmax",minn=0,maxn=0,wordNgrams=3),"ova":dict(loss="ova",minn=3,maxn=3,wordNgrams=2)}.items():
    m=fasttext.train_supervised('train.txt',dim=4,bucket=200,epoch=20,lr=0.5,thread=1,seed=1,verbose=0,**kw)
    m.save_model(f'{name}.bin')
    g=[]
    for t in texts:
        labels,p=m.predict(t,k=3,threshold=-1)
        g.append({"text":t,"p":{l[9:]:round(float(x),6) for l,x in zip(labels,p)}})
    gold.append({"model":name,"texts":g})
json.dump(gold,open('expected.json','w'),ensure_ascii=False)
